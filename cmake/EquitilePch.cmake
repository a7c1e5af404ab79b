# Headers from outside, compiled once per build: parsing them took half of its time. Only with clang; sources include what they
# use all the same, and another compiler takes them as they stand.
#
# CMake's own target_precompile_headers writes the path of the build folder into the file, so that ccache could find nothing for
# another clone. Here the headers come from the command line and the source is a header of the system: the files of all clones are
# equal. /dev/null would be too, but where such is included ccache does not look things up without running the preprocessor.
set(EQUITILE_STANDARD_HEADERS algorithm array atomic bit charconv chrono cmath cstdint cstring filesystem fstream functional limits map
    memory mutex numeric optional set span string string_view thread utility vector)

# equitile_add_pch(name LIBRARIES target… HEADERS header…): equitile_<name>_pch, for equitile_use_pch(target name).
function(equitile_add_pch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;HEADERS")
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang OR EQUITILE_SANITIZE OR NOT CMAKE_GENERATOR STREQUAL Ninja)
    return()
  endif()
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}}")
  get_directory_property(options COMPILE_OPTIONS)
  foreach(library ${arg_LIBRARIES})
    get_target_property(defines ${library} INTERFACE_COMPILE_DEFINITIONS)
    get_target_property(more ${library} INTERFACE_COMPILE_OPTIONS)
    if(defines)
      list(TRANSFORM defines PREPEND -D)
      list(APPEND options ${defines})
    endif()
    if(more)
      list(APPEND options ${more})
    endif()
  endforeach()
  set(includes ${EQUITILE_STANDARD_HEADERS} ${arg_HEADERS})
  list(TRANSFORM includes PREPEND "-include;")
  set(pch "${PROJECT_BINARY_DIR}/${name}.pch")
  set(source /usr/include/stdc-predef.h)  # of the C library, a few definitions that are there anyway
  if(NOT EXISTS ${source})
    set(source /dev/null)
  endif()
  add_custom_command(
    OUTPUT "${pch}" DEPFILE "${pch}.d" VERBATIM WORKING_DIRECTORY / COMMENT "Precompiling the headers of ${name}"
    COMMAND "${CMAKE_CXX_COMPILER}" ${flags} -fPIC ${options} -std=c++20 -fpch-instantiate-templates -Xclang -fno-pch-timestamp
            ${includes} -MD -MF "${pch}.d" -MT "${pch}" -x c++-header ${source} -o "${pch}"
    COMMAND sed -i s,/dev/null,, "${pch}.d")  # which is as old as the last start of the machine
  add_custom_target(equitile_${name}_pch DEPENDS "${pch}")
  set_target_properties(equitile_${name}_pch PROPERTIES EQUITILE_FILE "${pch}")
endfunction()

function(equitile_use_pch target name)
  if(TARGET equitile_${name}_pch)
    get_target_property(pch equitile_${name}_pch EQUITILE_FILE)
    # Programs too are compiled like libraries (-fPIC): the file fits one kind of code only.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC "SHELL:-include-pch \"${pch}\"")
    add_dependencies(${target} equitile_${name}_pch)
  endif()
endfunction()
