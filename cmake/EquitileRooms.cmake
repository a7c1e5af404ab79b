# The tree is the build: a room is a folder of equitile/, and a file's ending says what it is.
#   thing.cc -> the library    thing_test.cc -> test_<room>    thing_mpi_test.cc -> test_<room>_mpi    thing_bench.cc -> bench_<room>    thing_fuzz.cc -> fuzz_<thing>
# comm/mpi is the one folder that is not part of the library: see EquitileMpi.cmake.
set(EQUITILE_ROOMS base tensor pattern kernel plan comm exec io model sparsity quality generate search)
set(EQUITILE_KERNEL_ROOMS base tensor pattern kernel)
if(NOT EQUITILE_COMMAND)  # up to frames in memory: see the option
  list(REMOVE_ITEM EQUITILE_ROOMS quality search)
  set(EQUITILE_LEFT_OUT "|/io/frames/(png|video_reader|video_writer)\\.cc$|/generate/(request_files|video_run)\\.cc$")
endif()

# One binary for every machine: SIMD targets are chosen from at run time (kernel/target.h). These are the ones that the kernels know;
# whatever else a version of Highway has is left out: subsets and supersets (SSE2, SSSE3, AVX3_DL, AVX3_ZEN4, AVX3_SPR, …) add nothing
# over their neighbours, vectors of unknown length (SVE) cannot be held in the kernels' register tiles. All that includes Highway must
# agree on them: the library, and the tests of its per-target headers.
set(EQUITILE_TARGETS HWY_AVX3 HWY_AVX2 HWY_SSE4 HWY_NEON HWY_EMU128 HWY_SCALAR)
if(EQUITILE_SANITIZE)
  # One wide target and the portable one, as plain floats: instrumented register tiles take minutes to compile.
  list(REMOVE_ITEM EQUITILE_TARGETS HWY_AVX3 HWY_SSE4)
  set(EQUITILE_SIMD_TARGETS "HWY_BROKEN_EMU128=1")
endif()
list(JOIN EQUITILE_TARGETS "|" EQUITILE_TARGETS)
list(APPEND EQUITILE_SIMD_TARGETS "HWY_DISABLED_TARGETS=(~(${EQUITILE_TARGETS}))")

function(equitile_room_sources out room)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/${room}/*.cc")
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|_fuzz)\\.cc$|/comm/mpi/${EQUITILE_LEFT_OUT}")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# The one object in which the path of this clone stands: tests/in_repository.h.
function(equitile_add_in_repository)
  add_library(equitile_in_repository STATIC EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/in_repository.cc")
  target_include_directories(equitile_in_repository PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(equitile_in_repository PRIVATE EQUITILE_REPOSITORY="${PROJECT_SOURCE_DIR}")
endfunction()

function(equitile_add_room_tests)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  include(GoogleTest)
  equitile_add_pch(tests LIBRARIES fmt::fmt GTest::gtest HEADERS fmt/format.h nlohmann/json.hpp gtest/gtest.h rapidcheck.h)
  foreach(room ${EQUITILE_ROOMS})
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/${room}/*_test.cc")
    list(FILTER tests EXCLUDE REGEX "/comm/mpi/|_mpi_test\\.cc$")
    if(tests)
      add_executable(test_${room} ${tests})
      target_link_libraries(test_${room} PRIVATE equitile equitile_in_repository GTest::gtest GTest::gtest_main rapidcheck)
      target_compile_definitions(test_${room} PRIVATE "${EQUITILE_SIMD_TARGETS}")
      equitile_use_pch(test_${room} tests)
      gtest_discover_tests(test_${room} TEST_PREFIX "${room}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                           PROPERTIES TIMEOUT 600)
    endif()
  endforeach()
endfunction()

function(equitile_add_room_benches)
  find_package(benchmark REQUIRED)
  foreach(room ${EQUITILE_ROOMS})
    file(GLOB_RECURSE benches CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/${room}/*_bench.cc")
    if(benches)
      add_executable(bench_${room} ${benches})
      target_link_libraries(bench_${room} PRIVATE equitile equitile_in_repository benchmark::benchmark benchmark::benchmark_main)
    endif()
  endforeach()
endfunction()

# Readers of files from outside, under libFuzzer, ASan and UBSan. Their sources, and no others, are compiled again, with coverage.
function(equitile_add_fuzzers)
  set(sources base/aligned_buffer.cc base/base64.cc base/bit_count.cc base/error.cc io/atomic_write.cc io/records/config_file.cc io/json_value.cc
      io/records/machine_file.cc io/mapped_file.cc io/arrays/npy.cc io/records/pattern_file.cc io/records/plan_file.cc io/arrays/safetensors.cc io/arrays/safetensors_header.cc io/records/settings_file.cc
      io/arrays/stored_tensor.cc io/temporary_name.cc io/records/token_json.cc io/records/tokenizer_file.cc generate/run_checkpoint.cc pattern/block_grid.cc pattern/block_mask.cc pattern/head_pattern.cc pattern/hilbert.cc pattern/lane_masks.cc pattern/mask_hash.cc pattern/token_grid.cc pattern/token_order.cc plan/predict/cost_model.cc plan/core/home_map.cc plan/predict/machine.cc plan/core/plan.cc
      plan/core/plan_check.cc tensor/dtype.cc)
  list(TRANSFORM sources PREPEND "${PROJECT_SOURCE_DIR}/equitile/")
  add_library(equitile_fuzzed STATIC ${sources})
  # As one file, but for two whose own names others have too: JSON's templates are then compiled once, not a dozen times.
  set_target_properties(equitile_fuzzed PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  set_source_files_properties("${PROJECT_SOURCE_DIR}/equitile/io/records/machine_file.cc" "${PROJECT_SOURCE_DIR}/equitile/io/arrays/stored_tensor.cc"
                              PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(equitile_fuzzed PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(equitile_fuzzed PUBLIC fmt::fmt nlohmann_json::nlohmann_json)
  target_compile_options(equitile_fuzzed PUBLIC -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -gline-tables-only)
  target_link_options(equitile_fuzzed PUBLIC -fsanitize=address,undefined)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/equitile/*_fuzz.cc")
  foreach(fuzzer ${fuzzers})
    get_filename_component(name ${fuzzer} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" name ${name})
    add_executable(fuzz_${name} ${fuzzer})
    target_link_libraries(fuzz_${name} PRIVATE equitile_fuzzed)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    list(APPEND targets fuzz_${name})
  endforeach()
  add_custom_target(fuzzers DEPENDS ${targets})
endfunction()
