# What `make install` and `make package` put where.
#
# The layers are installed as static libraries, one per layer, as they are built: a program takes what it uses, the
# command has nothing to find at start-up, and there is no second copy of the link graph to keep true.

include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DOCDIR "${CMAKE_INSTALL_DATAROOTDIR}/doc/lockstep")
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")

get_property(targets GLOBAL PROPERTY LOCKSTEP_INSTALLED_core_TARGETS)
install(TARGETS ${targets}
  EXPORT LockstepCoreTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT core
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT core)
install(EXPORT LockstepCoreTargets
  NAMESPACE Lockstep:: DESTINATION ${package_folder} COMPONENT core)

# What links libtorch is a component of its own. It works with the torch that it was built with and no other, so the
# package records which that was.
if(LOCKSTEP_TORCH)
  get_property(torch_targets GLOBAL PROPERTY LOCKSTEP_INSTALLED_torch_TARGETS)
  install(TARGETS ${torch_targets}
    EXPORT LockstepTorchTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT torch)
  install(EXPORT LockstepTorchTargets
    NAMESPACE Lockstep:: DESTINATION ${package_folder} COMPONENT torch)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake" DESTINATION ${package_folder} COMPONENT torch)
  set(built_with_torch ${Libtorch_VERSION})
endif()

# What links MPI is one too: it needs MPI where it is used.
get_property(mpi_targets GLOBAL PROPERTY LOCKSTEP_INSTALLED_mpi_TARGETS)
if(mpi_targets)
  install(TARGETS ${mpi_targets}
    EXPORT LockstepMpiTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mpi
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT mpi)
  install(EXPORT LockstepMpiTargets
    NAMESPACE Lockstep:: DESTINATION ${package_folder} COMPONENT mpi)
endif()

set(core_targets ${targets})
list(REMOVE_ITEM core_targets lockstep_asio)  # linked by those that use it, not offered
list(TRANSFORM core_targets REPLACE "^lockstep_" "Lockstep::")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in" "${PROJECT_BINARY_DIR}/LockstepConfig.cmake"
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/LockstepConfig.cmake"
  "${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindHwloc.cmake"
  DESTINATION ${package_folder} COMPONENT core)

install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT core)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
  DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT core)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT core
  FILES_MATCHING PATTERN "*.md" PATTERN "*.abnf")

# The command writes its own completions.
if(TARGET lockstep AND NOT LOCKSTEP_SANITIZE)
  foreach(shell bash zsh)
    set(script "${PROJECT_BINARY_DIR}/completion/${shell}/lockstep")
    add_custom_command(OUTPUT "${script}"
      COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/completion/${shell}"
      COMMAND lockstep completion ${shell} > "${script}"
      DEPENDS lockstep VERBATIM)
    list(APPEND completions "${script}")
  endforeach()
  add_custom_target(lockstep_completions ALL DEPENDS ${completions})
  install(FILES "${PROJECT_BINARY_DIR}/completion/bash/lockstep"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT core)
  install(FILES "${PROJECT_BINARY_DIR}/completion/zsh/lockstep"
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _lockstep COMPONENT core)
endif()

set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "The Lockstep authors")
set(CPACK_PACKAGE_CONTACT "The Lockstep authors <lockstep@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed data-parallel training for C++: core and launcher")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL core)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_CORE_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# To link the static libraries; the command alone needs none of these.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libfmt-dev, libhwloc-dev, libhwy-dev, libspdlog-dev, libssl-dev")
set(CPACK_DEBIAN_CORE_PACKAGE_RECOMMENDS "${CPACK_DEBIAN_PACKAGE_RECOMMENDS}")
include(CPack)
