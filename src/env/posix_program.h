// Child processes of the real world.
#pragma once

#include "env/env.h"

namespace headrace {

/// See Env::run_program().
Result<ProgramOutput> run_posix_program(const ProgramStart& start);

}  // namespace headrace
