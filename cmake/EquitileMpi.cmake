# MPI stays out of the library: which of three libraries stands behind comm/mpi/launch.h is chosen by what a program links.
#   equitile_mpi      a real MPI                    equitile_no_mpi   none
#   equitile_smpi     SimGrid's simulator           equitile_launch   equitile_mpi where an MPI was found, else equitile_no_mpi
function(equitile_add_mpi_library name)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/comm/mpi/*.cc")
  list(FILTER sources EXCLUDE REGEX "(_test|_testing|/no_mpi)\\.cc$")
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC equitile)
endfunction()

function(equitile_add_mpi_libraries)
  add_library(equitile_no_mpi STATIC "${PROJECT_SOURCE_DIR}/equitile/comm/mpi/no_mpi.cc")
  target_link_libraries(equitile_no_mpi PUBLIC equitile)

  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is enough
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    equitile_add_mpi_library(equitile_mpi)
    target_link_libraries(equitile_mpi PUBLIC MPI::MPI_CXX)
    set_target_properties(equitile_mpi PROPERTIES EXPORT_NAME mpi)
    add_library(equitile_launch ALIAS equitile_mpi)
    set(EQUITILE_MPIEXEC "${MPIEXEC_EXECUTABLE}" PARENT_SCOPE)
  else()
    message(STATUS "MPI not found: the command runs on one machine only")
    add_library(equitile_launch ALIAS equitile_no_mpi)
  endif()

  # Not through smpicxx: its headers redefine exit() and main(), which our other libraries do not survive.
  find_path(SMPI_INCLUDE smpi/mpi.h)
  find_library(SIMGRID_LIBRARY simgrid)
  if(SMPI_INCLUDE AND SIMGRID_LIBRARY AND NOT EQUITILE_SANITIZE)
    equitile_add_mpi_library(equitile_smpi)
    target_include_directories(equitile_smpi SYSTEM PRIVATE "${SMPI_INCLUDE}/smpi")
    target_compile_definitions(equitile_smpi PRIVATE EQUITILE_SIMULATOR)
    target_link_libraries(equitile_smpi PUBLIC "${SIMGRID_LIBRARY}")
  else()
    message(STATUS "SimGrid not found: no scripts/cluster-sim")
  endif()
endfunction()

# A program of gtest cases that all ranks run in step, at 1, 2, 3 and 4 ranks. A deadlock is a failure after 20 seconds.
function(equitile_add_mpi_test room)
  add_executable(test_${room}_mpi ${ARGN} "${PROJECT_SOURCE_DIR}/equitile/comm/mpi/mpi_testing.cc")
  target_link_libraries(test_${room}_mpi PRIVATE equitile_mpi GTest::gtest)
  foreach(ranks 1 2 3 4)
    set(name ${room}_mpi.ranks${ranks})
    add_test(NAME ${name} COMMAND "${EQUITILE_MPIEXEC}" --allow-run-as-root --oversubscribe -n ${ranks}
                                  $<TARGET_FILE:test_${room}_mpi>)
    set_tests_properties(${name} PROPERTIES TIMEOUT 20 PROCESSORS 2)
  endforeach()
endfunction()

function(equitile_add_mpi_tests)
  if(NOT TARGET equitile_mpi OR EQUITILE_SANITIZE)  # Open MPI is full of what sanitizers complain about
    return()
  endif()
  foreach(room ${EQUITILE_ROOMS})
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/${room}/*_mpi_test.cc")
    if(tests)
      equitile_add_mpi_test(${room} ${tests})
    endif()
  endforeach()
endfunction()
