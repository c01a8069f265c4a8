//! What the kernel side of the probe and user space say to each other: plain-old-data records, without a dependency.
#![no_std]
