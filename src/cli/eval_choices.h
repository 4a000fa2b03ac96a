// Multiple choice in the form of HellaSwag: a line of JSON has a beginning ("ctx"), its possible
// endings ("endings") and which of them is right ("label", from 0).
#pragma once

#include <string>
#include <string_view>

#include "cli/eval_task.h"

namespace headrace {

/// A task "choices" of the first `setup.items` lines of `text`. What their questions follow are
/// later lines with their right endings, as many as there is room for. `file`: what errors name.
/// Errors: corrupt (file and line), invalid_argument (nothing to ask).
Result<EvalTask> make_choices_task(std::string_view text, const std::string& file,
                                   const EvalTaskSetup& setup);

}  // namespace headrace
