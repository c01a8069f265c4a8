//! Restrictions of this process that apply despite its capabilities: seccomp filters, namespaces and kernel settings.

pub mod filter;
pub mod namespace;

/// Content of a settings file; `None` if it does not exist or may not be read.
pub fn read_setting(path: &str) -> Option<String> {
    Some(foreign::kernel::read_text(path).ok()?.trim().to_owned())
}

/// `kernel.yama.ptrace_scope`; 3 forbids all ptrace access to other processes, whatever the capabilities.
pub fn ptrace_scope() -> Option<u8> {
    read_setting("/proc/sys/kernel/yama/ptrace_scope")?.parse().ok()
}

/// Lockdown level: `none`, `integrity` or `confidentiality`. The last prevents BPF from reading kernel memory.
pub fn lockdown_level() -> Option<String> {
    selected_level(&read_setting("/sys/kernel/security/lockdown")?)
}

/// Parses the selected level, as in `[none] integrity confidentiality`.
fn selected_level(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_level_is_in_brackets() {
        assert_eq!(selected_level("none [integrity] confidentiality").as_deref(), Some("integrity"));
        assert_eq!(selected_level("none"), None);
    }
}
