# The helpers that the CMakeLists of each folder use. Lists are explicit; DEPS are the only includes allowed
# (tools/check_layers.py reads the includes and says so too).
#
# A dependency is the name of a layer ("base", which is the target lockstep_base) or a target ("OpenSSL::Crypto").

include(GNUInstallDirs)
include(LockstepBatches)
include(LockstepLeaveOut)
include(LockstepPrecompiled)

# All layers that are installed, all fuzzers, and their headers each by itself, as targets to build by name.
add_custom_target(lockstep_libraries)
add_custom_target(lockstep_headers_alone)
add_custom_target(lockstep_fuzzers)

# Layers -> targets.
function(lockstep_resolve_deps result)
  set(resolved "")
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "::")
      list(APPEND resolved ${dep})
    else()
      list(APPEND resolved Lockstep::${dep})
    endif()
  endforeach()
  set(${result} "${resolved}" PARENT_SCOPE)
endfunction()

# lockstep_library(NAME base HDRS status.h ... SRCS status.cpp ... [DEPS ...] [PRIVATE_DEPS ...]
#                  [COMPONENT mpi] [PRECOMPILED headers] [NO_INSTALL] [FOR_TESTS])
#
# Makes the static library lockstep_<name>, alias Lockstep::<name>. HDRS are public: they are installed, and
# each must compile alone. What only the .cpp files include goes to PRIVATE_DEPS. COMPONENT is the one of
# find_package(Lockstep) that has it, where that is neither core nor torch. PRECOMPILED is another set of headers
# than most libraries use (LockstepPrecompiled.cmake). With FOR_TESTS only tests link it, and it is compiled as they are.
function(lockstep_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "NO_INSTALL;FOR_TESTS" "NAME;COMPONENT;PRECOMPILED" "HDRS;SRCS;DEPS;PRIVATE_DEPS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME)
    message(FATAL_ERROR "lockstep_library(${arg_NAME}): bad arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target lockstep_${arg_NAME})
  if(arg_FOR_TESTS)
    set(arg_NO_INSTALL TRUE)
  endif()
  lockstep_resolve_deps(deps ${arg_DEPS})
  lockstep_resolve_deps(private_deps ${arg_PRIVATE_DEPS})

  # A header-only library that no header of ours includes is no business of the one who links an installed Lockstep.
  list(TRANSFORM private_deps REPLACE "^((nlohmann_json|Msgpack)::.+)$" "$<BUILD_INTERFACE:\\1>")

  if(arg_SRCS)
    set(scope PUBLIC)
    add_library(${target} STATIC ${arg_SRCS})
    target_link_libraries(${target}
      PUBLIC ${deps} Threads::Threads
      PRIVATE ${private_deps} $<BUILD_INTERFACE:lockstep_warnings>)
    target_compile_options(${target} PRIVATE -Wconversion)
    lockstep_read_in_batches(${target})
    if(arg_FOR_TESTS)
      lockstep_compile_as_test(${target})
    elseif(arg_PRECOMPILED)
      lockstep_use_precompiled(${target} ${arg_PRECOMPILED})
    elseif("Libtorch::libtorch" IN_LIST deps)
      lockstep_use_precompiled(${target} lockstep_torch_library_headers)
    else()
      lockstep_use_precompiled(${target} lockstep_library_headers)
    endif()
    target_compile_definitions(${target} PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
    if(NOT arg_NO_INSTALL)
      add_dependencies(lockstep_libraries ${target})
    endif()
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${deps} Threads::Threads)
  endif()
  add_library(Lockstep::${arg_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_sources(${target} ${scope}
    FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/src" FILES ${arg_HDRS})

  if(arg_HDRS AND NOT arg_NO_INSTALL)
    set(component core)
    if(arg_COMPONENT)
      set(component ${arg_COMPONENT})
    endif()
    if("Libtorch::libtorch" IN_LIST deps)
      set(component torch)
    endif()
    foreach(dep IN LISTS deps)  # whoever links a library of the component is in it
      get_property(torch_targets GLOBAL PROPERTY LOCKSTEP_INSTALLED_torch_TARGETS)
      string(REPLACE "Lockstep::" "lockstep_" dep_target "${dep}")
      if(dep_target IN_LIST torch_targets)
        set(component torch)
      endif()
    endforeach()
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_INSTALLED_${component}_TARGETS ${target})
    foreach(header IN LISTS arg_HDRS)
      file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}/src" "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
      set_property(GLOBAL APPEND PROPERTY LOCKSTEP_PUBLIC_HEADERS ${path})
    endforeach()
  endif()
  if(arg_SRCS AND arg_HDRS AND NOT arg_NO_INSTALL)
    lockstep_check_headers_alone(${arg_NAME} ${arg_HDRS})
  endif()
endfunction()

# Each public header compiles alone, with what its library gives to the one who links it: a part of make check. One on
# libtorch compiles after ATen/core/Tensor.h, which it would read itself, and is a part of the preset dev: it takes as long
# as a test, and tests/checks compiles all of them after torch/torch.h.
function(lockstep_check_headers_alone name)
  set(units "")
  foreach(header IN LISTS ARGN)
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}/src" "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${header}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${path}\"\n#include \"${path}\"\n")
    list(APPEND units "${unit}")
  endforeach()
  add_library(lockstep_${name}_headers_alone OBJECT EXCLUDE_FROM_ALL ${units})
  add_dependencies(lockstep_headers_alone lockstep_${name}_headers_alone)
  target_link_libraries(lockstep_${name}_headers_alone PRIVATE Lockstep::${name} lockstep_warnings)
  get_target_property(links lockstep_${name} LINK_LIBRARIES)
  if("Libtorch::libtorch" IN_LIST links)
    lockstep_use_precompiled(lockstep_${name}_headers_alone lockstep_torch_library_headers)
    if(LOCKSTEP_TESTS AND NOT LOCKSTEP_BATCHES)
      set_target_properties(lockstep_${name}_headers_alone PROPERTIES EXCLUDE_FROM_ALL FALSE)
    endif()
  endif()
endfunction()

# Factors on the bounds that tests check: the machine may be slow and do other things, and a sanitizer has its cost.
set(LOCKSTEP_TEST_TIME_FACTOR 4)
set(LOCKSTEP_TEST_MEMORY_FACTOR 1)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_TEST_TIME_FACTOR 10)
  set(LOCKSTEP_TEST_MEMORY_FACTOR 20)
endif()

# lockstep_test(NAME status_test SRCS status_test.cpp [DEPS ...] TIMEOUT seconds [LABELS ...] [ENV A=1 ...]
#               [ARGS ...] [ALONE] [OWN_MAIN] [SERIAL] [WAITS])
#
# Tests of GoogleTest and the ctest that runs them, as a process of its own. TIMEOUT is in seconds on a plain build, 400 at
# least: it ends what hangs, and nothing that is slow. The tests of a folder are one program, tests/<folder>_tests, which
# is compiled in a third of the time (testing/tests_main.cpp); its DEPS are those of all. ALONE: a program of its own,
# tests/<name>, for sources that define what others must not have (operator new, a function of libc, the same names) or
# that run tests of a library. OWN_MAIN: so is one whose sources have a main(). SERIAL: runs with no other test beside it,
# but under a sanitizer. WAITS: spends its time waiting.
function(lockstep_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALONE;OWN_MAIN;SERIAL;WAITS" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;ENV;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_TIMEOUT)
    message(FATAL_ERROR "lockstep_test(${arg_NAME}): needs NAME and TIMEOUT; bad: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  if(arg_ALONE OR arg_OWN_MAIN)
    set(program ${arg_NAME})
  else()
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
    string(REGEX REPLACE "^(src/lockstep|tools|tests)/" "" folder "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}_tests" program)
    list(TRANSFORM arg_SRCS PREPEND --file= OUTPUT_VARIABLE files)
    list(PREPEND arg_ARGS ${files})
  endif()
  lockstep_resolve_deps(deps ${arg_DEPS})
  if(TARGET ${program})
    target_sources(${program} PRIVATE ${arg_SRCS})
    target_link_libraries(${program} PRIVATE ${deps})
  else()
    add_executable(${program} ${arg_SRCS})
    target_link_libraries(${program} PRIVATE ${deps} GTest::gmock lockstep_warnings)
    lockstep_compile_as_test(${program})
    lockstep_read_in_batches(${program})
    if(NOT arg_OWN_MAIN)
      target_link_libraries(${program} PRIVATE lockstep_tests_main)
    endif()
    target_include_directories(${program} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${program} ${arg_ARGS})
  lockstep_test_properties(${arg_NAME} "${arg_TIMEOUT}" "${arg_LABELS}" "${arg_ENV}" ${arg_SERIAL} ${arg_WAITS})
endfunction()

# lockstep_script_test(NAME x COMMAND ... TIMEOUT seconds [LABELS ...] [ENV ...] [SERIAL] [WAITS] [TORCH_PYTHON]):
# any other ctest. With TORCH_PYTHON, COMMAND is a Python program; where there is torch, it is run by a python3 that has
# imported it already, and so are those that launchers start, by PYTHON_EXEC (tests/torch_python/server.py).
function(lockstep_script_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SERIAL;WAITS;TORCH_PYTHON" "NAME;TIMEOUT" "COMMAND;LABELS;ENV")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_TIMEOUT)
    message(FATAL_ERROR "lockstep_script_test(${arg_NAME}): needs NAME and TIMEOUT; bad: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  if(NOT LOCKSTEP_TORCH_PYTHON AND arg_TORCH_PYTHON)
    set(arg_TORCH_PYTHON FALSE)
    list(PREPEND arg_COMMAND Python3::Interpreter)
  endif()
  if(arg_TORCH_PYTHON)
    list(PREPEND arg_COMMAND "${CMAKE_BINARY_DIR}/tests/torch_python/python")
    list(APPEND arg_ENV "PYTHON_EXEC=${CMAKE_BINARY_DIR}/tests/torch_python/python")
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  lockstep_test_properties(${arg_NAME} "${arg_TIMEOUT}" "${arg_LABELS}" "${arg_ENV}" ${arg_SERIAL} ${arg_WAITS})
  if(arg_TORCH_PYTHON)
    set_tests_properties(${arg_NAME} PROPERTIES FIXTURES_REQUIRED torch_python)
  endif()
endfunction()

# ctest runs tests for six processors: three that compute, or more of those that wait, which begin first.
function(lockstep_test_properties name timeout labels env serial waits)
  if(LOCKSTEP_SANITIZE)
    set(serial FALSE)  # bounds of time are wide there, and nothing is measured
  endif()
  if(timeout LESS 400)
    set(timeout 400)
  endif()
  if(LOCKSTEP_SANITIZE)
    math(EXPR timeout "${timeout} * 3 / 2")
  endif()
  set(asan_for_torch "")
  if(LOCKSTEP_TORCH)
    set(asan_for_torch ":allocator_may_return_null=1")  # its want of memory is an exception, which tests ask for
  endif()
  set(options
    "TEST_TIME_FACTOR=${LOCKSTEP_TEST_TIME_FACTOR}"
    "TEST_MEMORY_FACTOR=${LOCKSTEP_TEST_MEMORY_FACTOR}"
    # A runtime that disables core dumps does so for the ranks as well.
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1:disable_coredump=0${asan_for_torch}"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:disable_coredump=0")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${timeout} LABELS "${labels}" ENVIRONMENT "${options};${env}" RUN_SERIAL ${serial})
  if(waits)
    set_tests_properties(${name} PROPERTIES PROCESSORS 1 COST 100)
  else()
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

# lockstep_executable(NAME lockstep SRCS ... [DEPS ...] [OUTPUT_NAME name] [LIBEXEC] [INSTALL])
#
# A program, at build/<preset>/bin/<name>; with LIBEXEC at libexec/lockstep/<name>: helpers that the command starts,
# among them all that link libtorch. With INSTALL it is installed, by the same names.
function(lockstep_executable)
  cmake_parse_arguments(PARSE_ARGV 0 arg "LIBEXEC;INSTALL" "NAME;OUTPUT_NAME" "SRCS;DEPS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME)
    message(FATAL_ERROR "lockstep_executable(${arg_NAME}): bad arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  lockstep_resolve_deps(deps ${arg_DEPS})
  add_executable(${arg_NAME} ${arg_SRCS})
  lockstep_read_in_batches(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${deps} lockstep_warnings)
  target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_definitions(${arg_NAME} PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
  set(folder ${CMAKE_INSTALL_BINDIR})
  set(component core)
  if("Libtorch::libtorch" IN_LIST deps)
    set(component torch)  # not in the .deb
  endif()
  if(arg_LIBEXEC)
    set(folder ${CMAKE_INSTALL_LIBEXECDIR}/lockstep)
    set_target_properties(${arg_NAME} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${LOCKSTEP_LIBEXEC_OUTPUT_DIRECTORY}"
      INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
  if(arg_OUTPUT_NAME)
    set_target_properties(${arg_NAME} PROPERTIES OUTPUT_NAME ${arg_OUTPUT_NAME})
  endif()
  if(arg_INSTALL)
    install(TARGETS ${arg_NAME} RUNTIME DESTINATION ${folder} COMPONENT ${component})
  endif()
endfunction()

# lockstep_fuzzer(NAME frame_fuzz SRCS frame_fuzz.cpp [DEPS ...] CORPUS folder)
#
# A libFuzzer program at build/fuzz/fuzz/<name>; CORPUS is its folder of seeds under tests/fuzz/corpus.
function(lockstep_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;CORPUS" "SRCS;DEPS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_CORPUS)
    message(FATAL_ERROR "lockstep_fuzzer(${arg_NAME}): needs NAME and CORPUS; bad: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT IS_DIRECTORY "${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${arg_CORPUS}")
    message(FATAL_ERROR "lockstep_fuzzer(${arg_NAME}): no seeds in tests/fuzz/corpus/${arg_CORPUS}")
  endif()
  if(NOT LOCKSTEP_FUZZERS)
    return()
  endif()
  lockstep_resolve_deps(deps ${arg_DEPS})
  add_executable(${arg_NAME} ${arg_SRCS})
  target_link_libraries(${arg_NAME} PRIVATE ${deps} lockstep_warnings)
  target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
  target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
  add_dependencies(lockstep_fuzzers ${arg_NAME})
  # tools/fuzz.sh reads which fuzzers there are and where their seeds lie.
  set_property(GLOBAL APPEND_STRING PROPERTY LOCKSTEP_FUZZER_LIST "${arg_NAME} tests/fuzz/corpus/${arg_CORPUS}\n")
endfunction()
