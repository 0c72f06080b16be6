#include "lockstep/testing/support_table.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/base/text.h"

namespace lockstep::testing {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The cells of a row; nothing for a line that is none.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with("| ") || !line.ends_with(" |")) return cells;
  for (const std::string& cell : base::split(line.substr(1, line.size() - 2), '|'))
    cells.emplace_back(base::trim(cell));
  return cells;
}

// The lines of a file, and where its table is.
struct Document {
  std::vector<std::string> lines;
  std::size_t first_row = 0;
  std::size_t column = 0;

  static Result<Document> of(const std::string& path, const std::string& column) {
    Document document{.lines = base::split(read(path), '\n')};
    for (std::size_t i = 0; i < document.lines.size(); ++i) {
      const auto cells = cells_of(document.lines[i]);
      if (cells.empty() || cells[0] != "operation") continue;
      const auto found = std::find(cells.begin(), cells.end(), column);
      if (found == cells.end()) break;
      document.first_row = i + 2;
      document.column = static_cast<std::size_t>(found - cells.begin());
      return document;
    }
    return Status::invalid(cat(path, " has no table '| operation | ...' with a column ", column));
  }
};

}  // namespace

void SupportTable::add(const std::string& operation, DType type, bool supported) {
  if (!types_.contains(operation)) operations_.push_back(operation);
  std::set<DType>& types = types_[operation];
  if (supported) types.insert(type);
}

void SupportTable::add(const std::string& what, bool supported) {
  operations_.push_back(what);
  promises_[what] = supported;
}

std::string SupportTable::cell_of(const std::string& operation) const {
  if (const auto promise = promises_.find(operation); promise != promises_.end())
    return promise->second ? "yes" : "no";
  return text_of(types_.at(operation));
}

std::string SupportTable::text_of(const std::set<DType>& types) {
  if (types.empty()) return "none";
  std::vector<std::string> absent;
  std::vector<std::string> present;
  for (int i = 0; i < collective::kDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    (types.contains(type) ? present : absent).emplace_back(collective::name_of(type));
  }
  if (absent.empty()) return "all types";
  return absent.size() <= present.size() ? "all but " + base::join(absent) : base::join(present);
}

Status SupportTable::compare(const std::string& path) const {
  LOCKSTEP_ASSIGN(const Document document, Document::of(path, column_));
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const std::size_t line = document.first_row + i;
    const auto cells =
        line < document.lines.size() ? cells_of(document.lines[line]) : std::vector<std::string>();
    const std::string cell = cell_of(operations_[i]);
    if (cells.size() > document.column && cells[0] == operations_[i] && cells[document.column] == cell)
      continue;
    return Status::invalid(cat(path, ":", line + 1, ": ", column_, " has ", operations_[i], " for ", cell,
                               "; write the table anew, as the page says"));
  }
  return {};
}

Status SupportTable::write(const std::string& path) const {
  LOCKSTEP_ASSIGN(Document document, Document::of(path, column_));
  const std::size_t columns = cells_of(document.lines[document.first_row - 2]).size();
  std::map<std::string, std::vector<std::string>> rows;
  auto end = document.first_row;
  for (; end < document.lines.size() && !cells_of(document.lines[end]).empty(); ++end) {
    auto cells = cells_of(document.lines[end]);
    cells.resize(columns);
    rows.emplace(cells[0], cells);
  }
  std::vector<std::string> lines(document.lines.begin(),
                                 document.lines.begin() + static_cast<std::ptrdiff_t>(document.first_row));
  for (const std::string& operation : operations_) {
    auto& cells = rows.try_emplace(operation, columns, "").first->second;
    cells[0] = operation;
    cells[document.column] = cell_of(operation);
    lines.push_back(cat("| ", base::join(cells, " | "), " |"));
  }
  lines.insert(lines.end(), document.lines.begin() + static_cast<std::ptrdiff_t>(end), document.lines.end());
  std::ofstream file(path);
  file << base::join(lines, "\n");
  file.close();
  return file.good() ? Status() : Status::invalid(cat(path, " cannot be written"));
}

}  // namespace lockstep::testing
