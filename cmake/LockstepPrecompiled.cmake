# Headers that many files include and that are read once for all of them: on two cores a file on the standard library
# spends half of its time reading it, one on libtorch nine tenths. A file still includes what it uses: clang, which
# make check builds every layer without libtorch with, has no precompiled header.
#
# Flags that change what a header says must be the same where it is precompiled and where it is used: a library is
# -fPIC and optimised, a program that is run once is -fPIE and -O0. A source file with options of its own says
# SKIP_PRECOMPILE_HEADERS: gcc would take the header's for some of them, or crash.

# lockstep_precompiled(NAME lockstep_library_headers TYPE OBJECT|EXECUTABLE [DEPS ...] HEADERS <vector> ...)
function(lockstep_precompiled)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TYPE" "DEPS;HEADERS")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(unit "${CMAKE_BINARY_DIR}/precompiled/${arg_NAME}.cpp")
  file(CONFIGURE OUTPUT "${unit}" CONTENT "int main() {}\n")
  if(arg_TYPE STREQUAL "EXECUTABLE")
    add_executable(${arg_NAME} EXCLUDE_FROM_ALL "${unit}")
  else()
    add_library(${arg_NAME} OBJECT EXCLUDE_FROM_ALL "${unit}")
  endif()
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} lockstep_warnings Threads::Threads)
  if(arg_TYPE STREQUAL "EXECUTABLE")
    lockstep_compile_as_test(${arg_NAME})
  endif()
  target_precompile_headers(${arg_NAME} PRIVATE ${arg_HEADERS})
endfunction()

# Does nothing where there is no such header.
function(lockstep_use_precompiled target name)
  if(TARGET ${name} AND NOT target STREQUAL name)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# How tests are compiled, and what only they link: what is run once need not be fast. `target` is a program or a static
# library that has been given what it links.
function(lockstep_compile_as_test target)
  get_target_property(links ${target} LINK_LIBRARIES)
  get_target_property(type ${target} TYPE)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0;-g0>)
  if(type STREQUAL "STATIC_LIBRARY")  # as the programs that link it
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  if(TARGET GTest::gtest)  # among the headers, whether the target uses it or not
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
  endif()
  if("Libtorch::libtorch" IN_LIST links)
    lockstep_use_precompiled(${target} lockstep_torch_test_headers)
  else()
    lockstep_use_precompiled(${target} lockstep_test_headers)
  endif()
endfunction()

set(lockstep_standard_headers
  <algorithm> <array> <atomic> <chrono> <cstring> <deque> <filesystem> <fstream> <functional> <future> <map> <memory>
  <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant>
  <vector> <nlohmann/json.hpp>)

lockstep_precompiled(NAME lockstep_library_headers TYPE OBJECT HEADERS ${lockstep_standard_headers})
lockstep_precompiled(
  NAME lockstep_command_headers TYPE OBJECT DEPS CLI11::CLI11 HEADERS ${lockstep_standard_headers} <CLI/CLI.hpp>)
if(LOCKSTEP_TESTS)
  lockstep_precompiled(
    NAME lockstep_test_headers TYPE EXECUTABLE DEPS GTest::gmock
    HEADERS <gmock/gmock.h> <gtest/gtest.h> ${lockstep_standard_headers})
endif()
if(LOCKSTEP_TORCH)
  lockstep_precompiled(
    NAME lockstep_torch_library_headers TYPE OBJECT DEPS Libtorch::libtorch
    HEADERS <ATen/core/Tensor.h>)
endif()
# Tests, examples and others that are run once.
if(LOCKSTEP_TORCH AND LOCKSTEP_TESTS)
  lockstep_precompiled(
    NAME lockstep_torch_test_headers TYPE EXECUTABLE DEPS GTest::gmock Libtorch::libtorch
    HEADERS <gmock/gmock.h> <gtest/gtest.h> <ATen/ATen.h>)
endif()
