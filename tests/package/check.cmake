# Installs the build BUILD below SCRATCH, then builds and runs examples/library there with COMPILER: each component by itself.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${output}${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# example(component wanted option…): what it prints with only `component` installed besides those it needs.
function(example component wanted)
  run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${SCRATCH}/prefix" --component ${component})
  run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/../../examples/library" -B "${SCRATCH}/${component}" -G Ninja
      "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" "-DCOMPONENT=${component}" ${ARGN})
  run(${CMAKE_COMMAND} --build "${SCRATCH}/${component}")
  run("${SCRATCH}/${component}/example")
  if(NOT output STREQUAL wanted)
    message(FATAL_ERROR "the example of ${component} printed: ${output}instead of: ${wanted}")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
# Every token is a vector of ones: all scores are 64 / 8, so lse = 8 + log(kept tokens): 100 and 96.
example(kernel "output 1.000, log-sum-exp of the dense head 12.605, of the sparse one 12.564\n"
        -DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
# 784 blocks of one head and 112 of each other: whole heads cannot be balanced; rows of 28 and of 4 blocks can, to 4 blocks.
example(engine "ulysses: imbalance 1.714, work 896 336 336\nfractional: imbalance 1.003, work 524 524 520\n")
if(EXISTS "${BUILD}/libequitile_mpi.a")
  example(mpi "rank 0 of 1\n")
endif()
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${SCRATCH}/all")
run("${SCRATCH}/all/bin/equitile" --version)
if(NOT EXISTS "${SCRATCH}/all/share/equitile/models/wan-mini/transformer" OR EXISTS "${SCRATCH}/all/share/equitile/models/wan-mini/training")
  message(FATAL_ERROR "the model that runs is to be installed, without what it was trained with")
endif()
file(REMOVE_RECURSE "${SCRATCH}")
