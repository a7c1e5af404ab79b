# Installs the build BUILD below SCRATCH, then builds and runs the example there with COMPILER.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${SCRATCH}/prefix")
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${SCRATCH}/build" -G Ninja "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix")
run(${CMAKE_COMMAND} --build "${SCRATCH}/build")
run("${SCRATCH}/build/example")
# Every token is a vector of ones: all scores are 64 / 8, so lse = 8 + log(kept tokens): 100 and 96.
set(wanted "output 1.000, log-sum-exp of the dense head 12.605, of the sparse one 12.564\n")
if(NOT output STREQUAL wanted)
  message(FATAL_ERROR "the example printed: ${output}instead of: ${wanted}")
endif()
run("${SCRATCH}/prefix/bin/equitile" --version)
file(REMOVE_RECURSE "${SCRATCH}")
