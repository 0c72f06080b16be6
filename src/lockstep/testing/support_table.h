// Which operations a backend has on which types, as a column of a table in a Markdown file.
//
//   | operation | native | mpi |
//   |---|---|---|
//   | broadcast | all types | all types |
//   | 16-bit sums are rounded once | yes | no |
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/collective/dtype.h"

namespace lockstep::testing {

class SupportTable {
 public:
  explicit SupportTable(std::string column) : column_(std::move(column)) {}

  void add(const std::string& operation, DType type, bool supported);
  // Of something that has no type.
  void add(const std::string& what, bool supported);
  // kInvalid, with the first row that differs, if the column in the file says something else.
  Status compare(const std::string& path) const;
  // Writes the column into the table of the file, which keeps everything else.
  Status write(const std::string& path) const;

 private:
  // "all types", "all but float8", "none".
  static std::string text_of(const std::set<DType>& types);
  std::string cell_of(const std::string& operation) const;

  const std::string column_;
  std::vector<std::string> operations_;  // in the order in which they were added
  std::map<std::string, std::set<DType>> types_;
  std::map<std::string, bool> promises_;  // of those that have no type
};

}  // namespace lockstep::testing
