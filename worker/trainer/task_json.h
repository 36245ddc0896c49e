// One task as a JSON object, the line format of tasks.source jsonl (docs/tasks.md):
//   {"task_id": "t1", "prompt": "12+7=", "answer": "19", "group_size": 4,
//    "sampling": {"temperature": 0.7, "max_tokens": 32, "stop": ["\n"]}, "in_flight": "pin"}
// prompt (text), prompt_ids (token ids) or messages ([{"role": "user", "content": "..."}]); unknown
// keys, wrong types and values out of range are errors that name the key. Thread: pure function.
#pragma once

#include <string_view>

#include "protocol/records.h"
#include "protocol/status.h"

namespace warproll {

// What the object leaves out is as in `defaults`. An "answer" (text) becomes the metadata
// {"answer": ...}, "metadata" (text or any JSON) is passed through; not both.
Result<Task> task_from_json(std::string_view json, const Task& defaults);

}  // namespace warproll
