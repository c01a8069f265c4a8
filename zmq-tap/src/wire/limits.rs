//! How much one message may ask of the decoder.

/// Bounds on one message. Reaching one makes the message [`super::Undecoded::Limit`], with the option's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message in bytes.
    pub message: usize,
    /// Open marks in a pickle, open arrays and maps in msgpack.
    pub depth: usize,
    /// Values on a pickle's stack.
    pub stack: usize,
    /// Values a pickle numbers for reuse.
    pub memo: usize,
    /// Values built in the arena; also the most token ids a message may list in all.
    pub items: usize,
    /// Bytes of a request id or of a worker's address.
    pub text: usize,
}

impl Default for Limits {
    /// Fits a frame of 4,096 requests with top-5 logprobs, and about 100 MB of arena for a hostile message.
    fn default() -> Self {
        Self {
            message: 64 << 20,
            depth: 64,
            stack: 1 << 20,
            memo: 1 << 22,
            items: 1 << 22,
            text: 4096,
        }
    }
}
