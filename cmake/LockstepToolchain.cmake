# How everything is compiled: the language, the warnings, the sanitizers, the cache and the linker.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Line tables are enough for a stack trace, and a third of the size of -g.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(LOCKSTEP_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")  # gcc takes half as long again for -O1 -g under asan
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # the .deb

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
# Executables that link libtorch live apart from the command, which starts them and never links it.
set(LOCKSTEP_LIBEXEC_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/libexec/lockstep")

# No object file knows where the tree lies: __FILE__ and source_location read "src/lockstep/base/status.cpp", a
# debugger started in the source folder finds the sources, and a clone at another path finds the same objects in the
# cache. ccache rewrites paths under its base_dir to relative ones, hence the second map.
file(RELATIVE_PATH path_to_source "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}")
add_compile_options(
  "-ffile-prefix-map=${CMAKE_SOURCE_DIR}/="
  "-ffile-prefix-map=${path_to_source}="
  "-ffile-prefix-map=${CMAKE_BINARY_DIR}=.")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env  # cmake's own takes as long as a hit in the cache
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "CCACHE_NOHASHDIR=1"
      "CCACHE_INODECACHE=1"  # or it reads the precompiled header, of 100 MB and more, for every file
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "${CCACHE_PROGRAM}")
endif()

find_program(MOLD_PROGRAM NAMES ld.mold mold)
find_program(LLD_PROGRAM NAMES ld.lld)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
elseif(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()

# Warnings for our own code only; what a dependency's header says is its own affair (SYSTEM includes).
add_library(lockstep_warnings INTERFACE)
target_compile_options(lockstep_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi
  -Wno-missing-field-initializers  # options are designated initialisers; what is not named has its default
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)

if(LOCKSTEP_SANITIZE)
  add_compile_options("-fsanitize=${LOCKSTEP_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options("-fsanitize=${LOCKSTEP_SANITIZE}")
  # Each check of UndefinedBehaviorSanitizer has data with addresses in it: a million relocations when a program starts,
  # half of the time that a short one takes.
  add_link_options("$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>")
  if(LOCKSTEP_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize=vptr)  # it opens a pipe to look at an object, and aborts where descriptors are out
  endif()
endif()
