//! What the machine's administrator has set.

use std::fs;

/// A setting of the kernel, in its file; `None` where it does not exist or may not be read.
pub fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// `kernel.yama.ptrace_scope`: with 3 no process may look into another, whatever its capabilities.
pub fn ptrace_scope() -> Option<u8> {
    read("/proc/sys/kernel/yama/ptrace_scope")?.parse().ok()
}

/// The level of lockdown: `none`, `integrity`, `confidentiality`. The last keeps BPF from reading the kernel's memory.
pub fn lockdown() -> Option<String> {
    chosen(&read("/sys/kernel/security/lockdown")?)
}

/// `[none] integrity confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_level_is_in_brackets() {
        assert_eq!(chosen("none [integrity] confidentiality").as_deref(), Some("integrity"));
        assert_eq!(chosen("none"), None);
    }
}
