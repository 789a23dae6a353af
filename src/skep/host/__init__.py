"""Which GPUs, links, drivers, CPU and memory are here, and what is wrong with them."""
