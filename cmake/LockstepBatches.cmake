# Sources of a target are read by the compiler in batches, as one file: what they all include and instantiate is most of
# what each would cost. No two sources of a target may have one name in their unnamed namespaces. Sources with options of
# their own stay alone. Not in the presets dev, where one file is compiled again and again, and fuzz, which shows that each
# file includes what it uses.
#
# CMake's own UNITY_BUILD writes where the tree lies into its files, and a clone at another path would find nothing in the
# cache.

# lockstep_read_in_batches(target): when all sources of all targets are known, by lockstep_make_batches().
function(lockstep_read_in_batches target)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_BATCHED_TARGETS ${target})
endfunction()

# Once, at the end.
function(lockstep_make_batches)
  get_property(targets GLOBAL PROPERTY LOCKSTEP_BATCHED_TARGETS)
  if(NOT LOCKSTEP_BATCHES)
    return()
  endif()
  foreach(target IN LISTS targets)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(sources ${target} SOURCES)
    set(alone "")
    set(batched "")
    foreach(source IN LISTS sources)
      get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${folder}")
      get_property(options SOURCE "${path}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS)
      get_property(definitions SOURCE "${path}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_DEFINITIONS)
      file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}" "${path}")
      if(options OR definitions OR name MATCHES "^(\\.\\.|build)/")
        list(APPEND alone "${path}")
      else()
        list(APPEND batched "${name}")
      endif()
    endforeach()
    list(LENGTH batched count)
    if(count LESS 2)
      continue()
    endif()
    get_target_property(place ${target} BINARY_DIR)
    math(EXPR last "${count} - 1")
    foreach(first RANGE 0 ${last} ${LOCKSTEP_BATCHES})
      list(SUBLIST batched ${first} ${LOCKSTEP_BATCHES} batch)
      list(TRANSFORM batch REPLACE "(.+)" "#include \"\\1\"\n")
      string(JOIN "" content ${batch})
      file(CONFIGURE OUTPUT "${place}/batches/${target}_${first}.cpp" CONTENT "${content}" @ONLY)
      list(APPEND alone "${place}/batches/${target}_${first}.cpp")
    endforeach()
    set_target_properties(${target} PROPERTIES SOURCES "${alone}")
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
    # To gcc a source in a batch is a header, whose types should not have parts of an unnamed namespace.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endforeach()
endfunction()
