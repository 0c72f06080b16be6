# Defines Libtorch::libtorch: the headers and the CPU libraries of libtorch, from Torch_DIR (a variable or
# an environment variable), CMAKE_PREFIX_PATH, or what tools/setup.sh has recorded.
#
# torch's own TorchConfig.cmake is not used: with a CUDA build of torch it refuses to go on where no CUDA
# toolkit is installed, although nothing here needs one.

set(recorded "")
if(EXISTS "${CMAKE_SOURCE_DIR}/build/setup/torch_dir")
  file(STRINGS "${CMAKE_SOURCE_DIR}/build/setup/torch_dir" recorded LIMIT_COUNT 1)
endif()
if(NOT Torch_DIR AND NOT "$ENV{Torch_DIR}" STREQUAL "")
  set(Torch_DIR "$ENV{Torch_DIR}")
endif()
find_path(Torch_DIR TorchConfig.cmake
  PATH_SUFFIXES share/cmake/Torch
  HINTS "${recorded}"
  DOC "The folder that holds TorchConfig.cmake")

set(Libtorch_ROOT_DIR "")
if(Torch_DIR)
  get_filename_component(Libtorch_ROOT_DIR "${Torch_DIR}/../../.." ABSOLUTE)
  foreach(name torch torch_cpu c10)
    find_library(Libtorch_${name}_LIBRARY ${name} PATHS "${Libtorch_ROOT_DIR}/lib" NO_DEFAULT_PATH)
    mark_as_advanced(Libtorch_${name}_LIBRARY)
  endforeach()
  if(EXISTS "${Libtorch_ROOT_DIR}/include/torch/version.h")
    file(STRINGS "${Libtorch_ROOT_DIR}/include/torch/version.h" version_line REGEX "define TORCH_VERSION ")
    string(REGEX REPLACE ".*\"([0-9.]+).*\".*" "\\1" Libtorch_VERSION "${version_line}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_torch_cpu_LIBRARY Libtorch_c10_LIBRARY Torch_DIR
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "Run tools/setup.sh to get it, set Torch_DIR, or configure with --preset no-torch.")

if(Libtorch_FOUND AND NOT TARGET Libtorch::libtorch)
  add_library(Libtorch::libtorch INTERFACE IMPORTED)
  set_target_properties(Libtorch::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${Libtorch_ROOT_DIR}/include;${Libtorch_ROOT_DIR}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES
      "${Libtorch_torch_LIBRARY};${Libtorch_torch_cpu_LIBRARY};${Libtorch_c10_LIBRARY};Threads::Threads")
endif()
