// What runs the lines of docs/from-pytorch.md, as a rank. The program is generated (document.py) and started
// with a folder that all ranks can reach, or with --program and the number of a program of the document.
#pragma once

#include <lockstep/lockstep.h>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

// What the document says that every line may use.
namespace given {
inline int rank = 0;
inline int n = 1;
inline int next = 0;
inline int previous = 0;
inline std::string folder;
}  // namespace given

// In a world that was joined for all of those lines, or where none is joined.
enum class Where { kInWorld, kAlone };

struct Line {
  int number;  // in the document
  const char* text;
  void (*run)();
  Where where;
};
using Program = int (*)(int, char**);

inline void run_line(const Line& line) {
  try {
    line.run();
  } catch (const std::exception& error) {
    std::cerr << "line " << line.number << ", " << line.text << ": " << error.what() << "\n";
    std::exit(1);
  }
}

inline int run_document(int argc, char** argv, const std::vector<Line>& lines,
                        const std::vector<Program>& programs) {
  if (argc == 3 && std::string(argv[1]) == "--program")
    return programs.at(std::stoul(argv[2]) - 1)(argc, argv);
  if (argc != 2) return 2;
  const auto environment = lockstep::base::Environment::read().value();
  given::rank = environment.rank.value_or(0);
  given::n = environment.world_size.value_or(1);
  given::next = (given::rank + 1) % given::n;
  given::previous = (given::rank + given::n - 1) % given::n;
  given::folder = argv[1];
  for (const Line& line : lines) {
    if (line.where == Where::kAlone) run_line(line);
  }
  {
    const auto world = lockstep::init_process_group();
    for (const Line& line : lines) {
      if (line.where == Where::kInWorld) run_line(line);
    }
  }
  std::cout << "rank " << given::rank << " has run " << lines.size() << " lines\n";
  return 0;
}
