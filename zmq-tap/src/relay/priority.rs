//! The traffic comes first.

use std::io;

/// Enough that a busy machine gives the traffic three times the share. Not more: where the relay's thread has no table of files of its
/// own, a killed process closes its sockets when its last thread has had a CPU to die on (docs/internals/RELIABILITY.md has numbers).
const NICE: i32 = 5;

/// Lowers the calling thread's priority, for the thread that polls and decodes. Where the engine needs all the CPU there is,
/// observations then wait (up to the relay's budget) and messages do not. Needs no privilege, and cannot be taken back.
pub fn step_aside() -> io::Result<()> {
    // Linux understands "this process" here as the calling thread.
    Ok(rustix::process::setpriority_process(None, NICE)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    #[test]
    fn only_the_calling_thread_steps_aside() {
        let before = getpriority_process(None).expect("readable");
        let inside = std::thread::spawn(|| {
            super::step_aside().expect("needs no privilege");
            getpriority_process(None).expect("readable")
        });
        assert_eq!(inside.join().expect("the thread ends"), before.max(super::NICE));
        assert_eq!(getpriority_process(None).expect("readable"), before);
    }
}
