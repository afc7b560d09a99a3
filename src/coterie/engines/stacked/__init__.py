"""Any module over many clients at once: stacked parameters and vmap."""
