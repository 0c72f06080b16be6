# Tests that cannot run where the tree is built: no test is left out in silence.

# lockstep_leave_out("why" TEST...): said at once, and again by `make test` after the tests.
function(lockstep_leave_out why)
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  list(JOIN ARGN ", " tests)
  message(STATUS "Left out, because ${why}: ${tests}")
  set_property(GLOBAL APPEND_STRING PROPERTY LOCKSTEP_TESTS_LEFT_OUT "Left out, because ${why}: ${tests}\n")
endfunction()

# Once, at the end: what was left out, for `make test`. Empty if nothing was.
function(lockstep_write_left_out path)
  get_property(left_out GLOBAL PROPERTY LOCKSTEP_TESTS_LEFT_OUT)
  file(WRITE "${path}" "${left_out}")
endfunction()
