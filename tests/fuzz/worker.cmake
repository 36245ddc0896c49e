# The configuration reader and the task lines: their sources alone, not the whole worker.
add_library(warproll_fuzz_worker STATIC "${CMAKE_SOURCE_DIR}/worker/trainer/task_json.cpp")
target_link_libraries(warproll_fuzz_worker PUBLIC warproll_worker_config nlohmann_json::nlohmann_json)
warproll_fuzz(yaml LINK warproll_fuzz_worker)
