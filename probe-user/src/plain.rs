//! Records that may be passed to the kernel as plain bytes.
#![expect(unsafe_code, reason = "aya::Pod is an unsafe trait, implemented here once for all records")]

use probe_ebpf::egress::{Places, Serves, Stream, TlsConnection, ZmtpConnection};
use probe_ebpf::{Offsets, Thread, Watched};

/// Wrapper that makes a record of `probe-ebpf` usable with aya's maps and globals.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Plain<T>(pub(crate) T);

/// Marker for `repr(C)` structs of integers without padding: every bit pattern is valid and every byte is initialised.
pub(crate) trait PlainRecord: Copy + 'static {}

impl PlainRecord for Offsets {}
impl PlainRecord for Places {}
impl PlainRecord for Serves {}
impl PlainRecord for Stream {}
impl PlainRecord for Thread {}
impl PlainRecord for TlsConnection {}
impl PlainRecord for Watched {}
impl PlainRecord for ZmtpConnection {}

// SAFETY: `PlainRecord` is implemented above only for structs of integers without padding (tested below).
unsafe impl<T: PlainRecord> aya::Pod for Plain<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_has_padding() {
        assert_eq!(size_of::<Watched>(), 4 * 4);
        assert_eq!(size_of::<Offsets>(), 4 * 4);
        assert_eq!(size_of::<Thread>(), 4 * 4 + 10 * 8);
        assert_eq!(size_of::<Places>(), 33 * 4);
        assert_eq!(size_of::<Serves>(), 3 * 4);
        assert_eq!(size_of::<Stream>(), 4 * 4 + 8 * 8);
        assert_eq!(size_of::<TlsConnection>(), 2 * 4);
        assert_eq!(size_of::<ZmtpConnection>(), 8 + 2 * 4);
    }
}
