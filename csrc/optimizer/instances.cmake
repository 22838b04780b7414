# SPDX-License-Identifier: MIT
# The units that instantiate the update of optimizers on CUDA; see cmake/cuda.cmake.

foreach(type IN ITEMS float double)
  set(instances "")
  foreach(rule IN ITEMS AdamWRule<false> AdamWRule<true> LionRule)
    foreach(rows IN ITEMS kFewRows kMostRows)
      string(
        CONCAT instance
               "run_update<${rule}, ${type}, ${rows}>(const char*, const Context&, "
               "const RowTable<UpdateRow, ${rows}>&, std::int64_t, const UpdateOptions&, "
               "const StepNumbers<${type}>*)")
      list(APPEND instances "${instance}")
    endforeach()
  endforeach()
  tfk_cuda_instances(optimizer/update_${type} optimizer/update.cuh ${instances})
endforeach()
