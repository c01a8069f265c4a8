//! `/proc/PID/stat` and `/proc/PID/status`.

use foreign::kernel::status_field;

/// Fields of `stat` that identify a process and its relations (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    /// First 15 bytes of the name; `setproctitle` changes it too.
    pub(crate) comm: String,
    /// State letter: `R`, `S`, `Z`, ...
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// Clock ticks from boot to its start. Together with the pid it identifies a process uniquely.
    pub(crate) start_time: u64,
    pub(crate) is_kernel_thread: bool,
}

impl ProcessStat {
    /// Parses a stat line; `None` if it is invalid. The name may contain any characters, including parentheses and spaces.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let open = text.iter().position(|&byte| byte == b'(')?;
        // The name may contain parentheses, but no later field does.
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let comm = text.get(open + 1..close)?;
        let fields: Vec<&str> = fields_after_name(text)?.collect();
        // The numbers of the fields are those in proc(5). The first field after the name is the state, field 3.
        Some(Self {
            comm: String::from_utf8_lossy(comm).into_owned(),
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number_of_field(&fields, 4)?).ok()?,
            start_time: number_of_field(&fields, 22)?,
            is_kernel_thread: number_of_field(&fields, 9)? & PF_KTHREAD != 0,
        })
    }
}

/// Number by the field's number in proc(5). The fields after the name begin with the third.
fn number_of_field(fields_after_name: &[&str], field: usize) -> Option<u64> {
    fields_after_name.get(field - 3)?.parse().ok()
}

/// Fields after the name, which may contain any characters: the state letter, the parent, ...
pub(crate) fn fields_after_name(stat: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(&stat[close + 1..]).ok()?.split_ascii_whitespace())
}

/// State letter of a stat line, such as `R` or `S`.
pub(crate) fn state_letter(stat: &[u8]) -> Option<char> {
    fields_after_name(stat)?.next()?.chars().next()
}

/// Pids of a process from this procfs's pid namespace inwards (`NSpid`). The last is the pid that the process itself sees. Empty if they
/// cannot be parsed.
pub(crate) fn parse_ns_pids(status: &[u8]) -> Vec<u32> {
    // Kernels without pid namespaces have no such field.
    let Some(field) = status_field(status, "NSpid:") else { return Vec::new() };
    let pids: Result<Vec<u32>, _> = field.split_ascii_whitespace().map(str::parse).collect();
    pids.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured: a spawned child that called `setproctitle("sglang::scheduler_DP0_TP0")`.
    const SCHEDULER: &[u8] = b"11543 (sglang::schedul) S 11541 11538 4031 0 -1 4194304 2041 0 0 0 3 0 0 0 20 0 1 0 132856 17035264 3448 18446744073709551615 94605773770752 94605773771093 140729293326128 0 0 0 0 16781312 2 1 0 0 17 1 0 0 0 0 0 94605773782448 94605773783064 94606628810752 140729293326937 140729293327075 140729293327075 140729293328353 0\n";

    #[test]
    fn reads_a_titled_child() {
        let expected = ProcessStat {
            comm: "sglang::schedul".into(),
            state: 'S',
            parent: 11541,
            start_time: 132_856,
            is_kernel_thread: false,
        };
        assert_eq!(ProcessStat::parse(SCHEDULER), Some(expected));
    }

    #[test]
    fn a_name_that_looks_like_the_rest_of_the_line_parses() {
        let tricky = String::from_utf8_lossy(SCHEDULER).replace("sglang::schedul", "a) S 1 (b");
        assert_eq!(
            (ProcessStat::parse(tricky.as_bytes()).unwrap().parent, state_letter(tricky.as_bytes())),
            (11541, Some('S'))
        );
        assert_eq!(ProcessStat::parse(tricky.as_bytes()).unwrap().comm, "a) S 1 (b");
    }

    #[test]
    fn reads_the_pids_of_a_container() {
        let status = b"Name:\tpython3\nNStgid:\t22336\t1\nNSpid:\t22336\t1\n";
        assert_eq!(parse_ns_pids(status), [22336, 1]);
        assert_eq!(parse_ns_pids(b"Name:\tx\n"), [0; 0]);
        assert_eq!((status_field(status, "NStgid:"), status_field(status, "Seccomp:")), (Some("22336\t1"), None));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = ProcessStat::parse(&bytes);
            let _ = parse_ns_pids(&bytes);
        }

        #[test]
        fn a_truncated_line_gives_nothing_or_correct_values(cut in 0..SCHEDULER.len()) {
            if let Some(stat) = ProcessStat::parse(&SCHEDULER[..cut]) {
                prop_assert_eq!(stat.parent, 11541);
            }
        }
    }
}
