# What the tree links, each for the reason in docs/dependencies.md. tools/setup.sh installs them all.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Asio REQUIRED)
find_package(Hwloc REQUIRED)
find_package(hwy REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Msgpack REQUIRED)
if(LOCKSTEP_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings that MPI no longer has
  find_package(MPI 3.1 QUIET COMPONENTS CXX)
endif()
if(LOCKSTEP_TESTS)
  find_package(GTest REQUIRED)
endif()
if(LOCKSTEP_TORCH)
  find_package(Libtorch 2.7 REQUIRED)  # the first whose wheels all have the C++11 ABI
endif()
