# Defines Libtorch::libtorch, the headers and the CPU libraries of libtorch, and LOCKSTEP_TORCH_PYTHON. Looks in
# Torch_DIR (a variable or an environment variable), CMAKE_PREFIX_PATH, and where tools/setup.sh has recorded.
#
# torch's own TorchConfig.cmake is not used: with a CUDA build of torch it refuses to go on where no CUDA
# toolkit is installed, although nothing here needs one.

set(recorded "")
if(EXISTS "${PROJECT_SOURCE_DIR}/build/setup/torch_dir")
  file(STRINGS "${PROJECT_SOURCE_DIR}/build/setup/torch_dir" recorded LIMIT_COUNT 1)
endif()
if(NOT "$ENV{Torch_DIR}" STREQUAL "")
  set(recorded "$ENV{Torch_DIR}")
endif()
if(Torch_DIR AND NOT EXISTS "${Torch_DIR}/TorchConfig.cmake")
  unset(Torch_DIR CACHE)  # what an earlier configuration found is gone
endif()
# What an earlier configuration found, and was not given by -DTorch_DIR, gives way to what set-up says now.
if(Torch_DIR AND "${Torch_DIR}" STREQUAL "${LOCKSTEP_TORCH_FOUND}" AND NOT "${recorded}" STREQUAL "${LOCKSTEP_TORCH_RECORDED}")
  unset(Torch_DIR CACHE)
endif()
if(NOT Torch_DIR)
  if(NOT "$ENV{Torch_DIR}" STREQUAL "")  # before CMAKE_PREFIX_PATH, as set-up looks
    find_path(Torch_DIR TorchConfig.cmake PATHS "$ENV{Torch_DIR}" NO_DEFAULT_PATH)
  endif()
  find_path(Torch_DIR TorchConfig.cmake
    HINTS "${recorded}"
    PATH_SUFFIXES share/cmake/Torch
    DOC "The folder that holds TorchConfig.cmake")
  set(LOCKSTEP_TORCH_FOUND "${Torch_DIR}" CACHE INTERNAL "Torch_DIR, if it was found and not given")
  set(LOCKSTEP_TORCH_RECORDED "${recorded}" CACHE INTERNAL "What set-up said then")
endif()

if(Torch_DIR)
  get_filename_component(Libtorch_ROOT_DIR "${Torch_DIR}/../../.." ABSOLUTE)
  foreach(name torch torch_cpu c10)
    find_library(Libtorch_${name}_LIBRARY ${name} PATHS "${Libtorch_ROOT_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
  endforeach()
  file(STRINGS "${Torch_DIR}/TorchConfigVersion.cmake" version_line REGEX "set\\(PACKAGE_VERSION ")
  string(REGEX REPLACE ".*\"([0-9.]+).*\".*" "\\1" Libtorch_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_torch_cpu_LIBRARY Libtorch_c10_LIBRARY Torch_DIR
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "Run tools/setup.sh to get it, set Torch_DIR, or configure with --preset no-torch.")

# The python3 whose torch it is, for the tests that run both; not set where libtorch came without one.
if(Libtorch_FOUND AND "${Torch_DIR}" STREQUAL "${recorded}" AND EXISTS "${PROJECT_SOURCE_DIR}/build/setup/torch_python")
  file(STRINGS "${PROJECT_SOURCE_DIR}/build/setup/torch_python" LOCKSTEP_TORCH_PYTHON LIMIT_COUNT 1)
endif()

if(Libtorch_FOUND AND NOT TARGET Libtorch::libtorch)
  add_library(Libtorch::libtorch INTERFACE IMPORTED)
  set_target_properties(Libtorch::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${Libtorch_ROOT_DIR}/include;${Libtorch_ROOT_DIR}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES
      "${Libtorch_torch_LIBRARY};${Libtorch_torch_cpu_LIBRARY};${Libtorch_c10_LIBRARY};Threads::Threads")
endif()
