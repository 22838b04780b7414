# SPDX-License-Identifier: MIT
# The units that instantiate products with activations, Hopper's and Ampere's; see cmake/cuda.cmake.

function(linear_unit name function problem epilogue)
  tfk_cuda_instances(linear/sm90/${name}_sm90a linear/sm90/products.cuh
                     "${function}(const Context&, const ${problem}&, const ${epilogue}&)")
  tfk_cuda_instances(linear/sm80/${name} linear/sm80/products.cuh
                     "ampere::${function}(const Context&, const ${problem}&, const ${epilogue}&)")
endfunction()

linear_unit(activate launch_activated Product Activated)
linear_unit(activate_kept launch_activated Product ActivatedKept)
linear_unit(gated launch_gated GatedProduct Gated)
linear_unit(gated_kept launch_gated GatedProduct GatedKept)
linear_unit(gated_slope launch_gated GatedProduct GatedSloped)

# Those of groups of rows.
foreach(pass IN ITEMS Gated Dgated)
  string(TOLOWER ${pass} name)
  tfk_cuda_instances(linear/sm90/grouped_${name}_sm90a linear/sm90/grouped_gate.cuh
                     "launch_grouped_gate(const Context&, const Grouped${pass}Problem&)")
endforeach()
