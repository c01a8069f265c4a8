//! Kernel side.
#![no_std]
#![no_main]
