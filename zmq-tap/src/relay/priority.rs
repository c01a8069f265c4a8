//! Priority of the relay thread over decoding.

use std::io;

/// On a busy machine the relay thread then gets three times the CPU share. A higher value is harmful where the relay thread does not have
/// its own file table. There, a killed process closes its sockets only when its last thread has been scheduled to exit (numbers in
/// docs/internals/RELIABILITY.md).
const NICE: i32 = 5;

/// Lowers the priority of the calling thread, which polls and decodes. When the engine uses all CPUs, observations then wait (within the
/// relay's budget) and messages do not. Needs no privilege and cannot be reversed.
pub fn lower_priority() -> io::Result<()> {
    // For this call Linux takes "this process" to mean the calling thread.
    Ok(rustix::process::setpriority_process(None, NICE)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn only_the_calling_thread_is_niced() {
        let before = getpriority_process(None).expect("readable");
        let inside = std::thread::spawn(|| {
            super::lower_priority().expect("needs no privilege");
            getpriority_process(None).expect("readable")
        });
        assert_eq!(inside.join().expect("the thread ends"), before.max(super::NICE));
        assert_eq!(getpriority_process(None).expect("readable"), before);
    }
}
