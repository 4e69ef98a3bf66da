"""Ask, without torch, whether devices of a family are there: one module for each family. All read
small files of the kernel's drivers under a root that tests exchange; none opens a device."""
