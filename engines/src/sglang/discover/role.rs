//! Roles of SGLang's processes, and the titles that state them.

use adapter::discover::{Function, Rank, Role};

/// A scheduler rank, which generates tokens. One rank of each DP replica sends them.
pub const SCHEDULER: Role = Role::new(0, "scheduler", Function::Source);
/// Distributes requests to the schedulers of several DP replicas.
pub(crate) const DP_CONTROLLER: Role = Role::new(1, "dp-controller", Function::Control);
/// Distributes the schedulers' frames among several detokenizers.
pub(crate) const DETOKENIZER_ROUTER: Role = Role::new(2, "detokenizer-router", Function::Intermediate);
/// Converts token ids into text.
pub const DETOKENIZER: Role = Role::new(3, "detokenizer", Function::Intermediate);
/// Distributes frames among several tokenizer workers.
pub const ROUTER: Role = Role::new(4, "router", Function::Intermediate).main();
/// Runs the `TokenizerManager`: the server's main process, or a Dynamo worker.
pub const TOKENIZER: Role = Role::new(5, "tokenizer", Function::Receiver).main();
/// One of several processes that each run a `TokenizerWorker`.
pub const WORKER: Role = Role::new(6, "worker", Function::Receiver);

/// All roles in the order of the token path.
pub(super) const ROLES: &[Role] =
    &[SCHEDULER, DP_CONTROLLER, DETOKENIZER_ROUTER, DETOKENIZER, ROUTER, TOKENIZER, WORKER];

/// Role with this other name in `--pid PID=ROLE`. `None` if no role has it.
pub(super) fn role_of_alias(word: &str) -> Option<Role> {
    match word {
        "main" | "http" | "dynamo" | "dynamo-worker" | "tokenizer-manager" => Some(TOKENIZER),
        "tokenizer-worker" => Some(WORKER),
        "tokenizer-router" => Some(ROUTER),
        "data-parallel-controller" => Some(DP_CONTROLLER),
        _ => None,
    }
}

/// Role and rank in a process title of SGLang 0.4.0 to 0.5.23, such as `sglang::scheduler_DP0_TP0` or `sglang::tokenizer_worker:4711`.
/// `None` for any other title.
pub(super) fn role_of_title(title: &str) -> Option<(Role, Rank)> {
    // Longer names come first, since `detokenizer_router` begins with `detokenizer`.
    const TITLES: [(&str, Role); 5] = [
        ("detokenizer_router", DETOKENIZER_ROUTER),
        ("detokenizer", DETOKENIZER),
        ("data_parallel_controller", DP_CONTROLLER),
        ("tokenizer_worker", WORKER),
        ("scheduler", SCHEDULER),
    ];
    let title = title.trim_end().strip_prefix("sglang::")?;
    let (rest, role) = TITLES.iter().find_map(|(name, role)| Some((title.strip_prefix(name)?, *role)))?;
    let is_whole_name = rest.is_empty() || rest.starts_with(['_', ':', ' ']);
    if !is_whole_name {
        return None;
    }
    // Other roles may have numbers of another meaning, such as a worker's pid.
    let rank = if role == SCHEDULER { parse_rank(rest) } else { Rank::default() };
    Some((role, rank))
}

/// Rank of a scheduler by the end of its title: `_DP0_TP1` is rank 0 of data parallelism and 1 of tensor parallelism. Other parts are
/// ignored.
fn parse_rank(title_end: &str) -> Rank {
    let mut rank = Rank::default();
    for part in title_end.split(['_', ' ']) {
        let name_length = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
        let (name, number) = part.split_at(name_length);
        let field = match name {
            "DP" => &mut rank.dp,
            "PP" => &mut rank.pp,
            "TP" => &mut rank.tp,
            "EP" => &mut rank.ep,
            _ => continue,
        };
        *field = number.parse().ok();
    }
    rank
}

#[cfg(test)]
mod tests {
    use probe_user::discover::RoleSpec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn titles_of_all_releases_parse() {
        let rank = |dp, pp, tp, ep| Rank { dp, pp, tp, ep };
        let cases = [
            ("sglang::scheduler", SCHEDULER, Rank::default()),
            ("sglang::scheduler_TP0", SCHEDULER, rank(None, None, Some(0), None)),
            ("sglang::scheduler_DP1_TP3", SCHEDULER, rank(Some(1), None, Some(3), None)),
            ("sglang::scheduler_DP0_PP1_TP2_EP3", SCHEDULER, rank(Some(0), Some(1), Some(2), Some(3))),
            ("sglang::scheduler_DP0_TP0_ATTN_CP1", SCHEDULER, rank(Some(0), None, Some(0), None)),
            ("sglang::detokenizer", DETOKENIZER, Rank::default()),
            ("sglang::detokenizer_worker_0", DETOKENIZER, Rank::default()),
            ("sglang::detokenizer_router", DETOKENIZER_ROUTER, Rank::default()),
            ("sglang::data_parallel_controller", DP_CONTROLLER, Rank::default()),
            ("sglang::tokenizer_worker:4711", WORKER, Rank::default()),
        ];
        for (title, role, rank) in cases {
            assert_eq!(role_of_title(title), Some((role, rank)), "{title}");
        }
    }

    #[test]
    fn other_titles_are_rejected() {
        for title in
            ["sglang::draftproxy", "sglang-jax::scheduler", "sglang::schedulers", "python3", "vllm::scheduler", ""]
        {
            assert_eq!(role_of_title(title), None, "{title}");
        }
    }

    #[test]
    fn every_role_parses_from_its_own_word() {
        let read = |text: &str| {
            let spec = RoleSpec::parse(&format!("1={text}"), crate::DISCOVERED)?;
            Ok::<_, String>(spec.role)
        };
        for role in ROLES {
            assert_eq!(read(role.word()), Ok(Some(*role)));
        }
        assert_eq!(read("Dynamo"), Ok(Some(TOKENIZER)));
        assert_eq!(read("tokenizer_worker"), Ok(Some(WORKER)));
        let message = read("tokeniser").unwrap_err();
        assert!(message.contains("`tokeniser` is not a role; use one of scheduler, dp-controller"), "{message}");
    }

    proptest! {
        #[test]
        fn arbitrary_titles_never_panic(tail in ".{0,60}") {
            let _ = role_of_title(&format!("sglang::scheduler{tail}"));
            let _ = role_of_title(&tail);
        }
    }
}
