//! Role of a process on the token path, with the source of that knowledge.

use std::fmt;
use std::str::FromStr;

/// Role of a process. Hop names consist of these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A scheduler rank, which generates tokens. One rank of each DP replica sends them.
    Scheduler,
    /// Distributes requests to the schedulers of several DP replicas.
    DpController,
    /// Distributes the schedulers' frames among several detokenizers.
    DetokenizerRouter,
    /// Converts token ids into text.
    Detokenizer,
    /// Distributes frames among several tokenizer workers.
    TokenizerRouter,
    /// Runs the `TokenizerManager`: the server's main process, or a Dynamo worker.
    Tokenizer,
    /// One of several processes that each run a `TokenizerWorker`.
    TokenizerWorker,
}

impl Role {
    /// All roles in the order of the token path.
    pub const ALL: [Self; 7] = [
        Self::Scheduler,
        Self::DpController,
        Self::DetokenizerRouter,
        Self::Detokenizer,
        Self::TokenizerRouter,
        Self::Tokenizer,
        Self::TokenizerWorker,
    ];

    /// Name on screen, in hop names and in `--pid PID=ROLE`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::DpController => "dp-controller",
            Self::DetokenizerRouter => "detokenizer-router",
            Self::Detokenizer => "detokenizer",
            Self::TokenizerRouter => "router",
            Self::Tokenizer => "tokenizer",
            Self::TokenizerWorker => "worker",
        }
    }

    /// Whether the server's main process, or a child of it, starts processes with this role.
    pub(crate) fn is_started_by_main(self) -> bool {
        !matches!(self, Self::Tokenizer | Self::TokenizerRouter)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Error for an unknown role name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role; the roles are {words}", words = words())]
pub struct UnknownRole(String);

fn words() -> String {
    Role::ALL.map(Role::word).join(", ")
}

impl FromStr for Role {
    type Err = UnknownRole;

    /// Parses a role name. Underscores are accepted for dashes; `main`, `http` and `dynamo` are aliases of the tokenizer.
    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let word = text.trim().to_ascii_lowercase().replace('_', "-");
        let found = Self::ALL.into_iter().find(|role| role.word() == word);
        found
            .or(match word.as_str() {
                "main" | "http" | "dynamo" | "dynamo-worker" | "tokenizer-manager" => Some(Self::Tokenizer),
                "tokenizer-worker" => Some(Self::TokenizerWorker),
                "tokenizer-router" => Some(Self::TokenizerRouter),
                "data-parallel-controller" => Some(Self::DpController),
                _ => None,
            })
            .ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// Source of a role, from the most to the least reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleSource {
    /// The user named it (`--pid PID=ROLE`).
    Hand,
    /// The process title (`setproctitle`).
    Title,
    /// The command line.
    CommandLine,
    /// It started processes with known roles.
    Children,
    /// Its connections match the role.
    Sockets,
}

impl fmt::Display for RoleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hand => "named by hand",
            Self::Title => "title",
            Self::CommandLine => "command line",
            Self::Children => "its children",
            Self::Sockets => "its sockets",
        })
    }
}

/// Rank of a scheduler according to its title; `None` for parts that the title omits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Data-parallel replica.
    pub dp: Option<u16>,
    /// Pipeline stage.
    pub pp: Option<u16>,
    /// Tensor-parallel rank.
    pub tp: Option<u16>,
    /// Expert-parallel rank.
    pub ep: Option<u16>,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("DP", self.dp), ("PP", self.pp), ("TP", self.tp), ("EP", self.ep)];
        let said: Vec<String> = parts
            .iter()
            .filter_map(|(name, n)| n.map(|n| format!("{name}{n}")))
            .collect();
        f.pad(&said.join(" "))
    }
}

/// Parses a process title (SGLang 0.4.0 to 0.5.23: `sglang::scheduler_DP0_TP0`, `sglang::tokenizer_worker:4711`).
pub(crate) fn from_title(title: &str) -> Option<(Role, Rank)> {
    // Longer names come first, since `detokenizer_router` begins with `detokenizer`.
    const TITLES: [(&str, Role); 5] = [
        ("detokenizer_router", Role::DetokenizerRouter),
        ("detokenizer", Role::Detokenizer),
        ("data_parallel_controller", Role::DpController),
        ("tokenizer_worker", Role::TokenizerWorker),
        ("scheduler", Role::Scheduler),
    ];
    let title = title.trim_end().strip_prefix("sglang::")?;
    let (rest, role) = TITLES
        .iter()
        .find_map(|(name, role)| Some((title.strip_prefix(name)?, *role)))?;
    if !(rest.is_empty() || rest.starts_with(['_', ':', ' '])) {
        return None;
    }
    let mut rank = Rank::default();
    for part in rest.split(['_', ' ']).filter(|_| role == Role::Scheduler) {
        let digits = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
        let (name, number) = part.split_at(digits);
        let place = match name {
            "DP" => &mut rank.dp,
            "PP" => &mut rank.pp,
            "TP" => &mut rank.tp,
            "EP" => &mut rank.ep,
            _ => continue,
        };
        *place = number.parse().ok();
    }
    Some((role, rank))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn titles_of_the_releases() {
        let rank = |dp, pp, tp, ep| Rank { dp, pp, tp, ep };
        let cases = [
            ("sglang::scheduler", Role::Scheduler, Rank::default()),
            (
                "sglang::scheduler_TP0",
                Role::Scheduler,
                rank(None, None, Some(0), None),
            ),
            (
                "sglang::scheduler_DP1_TP3",
                Role::Scheduler,
                rank(Some(1), None, Some(3), None),
            ),
            (
                "sglang::scheduler_DP0_PP1_TP2_EP3",
                Role::Scheduler,
                rank(Some(0), Some(1), Some(2), Some(3)),
            ),
            (
                "sglang::scheduler_DP0_TP0_ATTN_CP1",
                Role::Scheduler,
                rank(Some(0), None, Some(0), None),
            ),
            ("sglang::detokenizer", Role::Detokenizer, Rank::default()),
            ("sglang::detokenizer_worker_0", Role::Detokenizer, Rank::default()),
            ("sglang::detokenizer_router", Role::DetokenizerRouter, Rank::default()),
            ("sglang::data_parallel_controller", Role::DpController, Rank::default()),
            ("sglang::tokenizer_worker:4711", Role::TokenizerWorker, Rank::default()),
        ];
        for (title, role, rank) in cases {
            assert_eq!(from_title(title), Some((role, rank)), "{title}");
        }
    }

    #[test]
    fn other_titles_are_not_ours() {
        for title in [
            "sglang::draftproxy",
            "sglang-jax::scheduler",
            "sglang::schedulers",
            "python3",
            "vllm::scheduler",
            "",
        ] {
            assert_eq!(from_title(title), None, "{title}");
        }
    }

    #[test]
    fn every_word_is_read_back() {
        for role in Role::ALL {
            assert_eq!(role.word().parse(), Ok(role));
        }
        assert_eq!("Dynamo".parse(), Ok(Role::Tokenizer));
        assert_eq!("tokenizer_worker".parse(), Ok(Role::TokenizerWorker));
        let taught = "tokeniser".parse::<Role>().unwrap_err().to_string();
        assert!(
            taught.contains("`tokeniser` is no role; the roles are scheduler, dp-controller"),
            "{taught}"
        );
    }

    proptest! {
        #[test]
        fn any_title_is_survived(tail in ".{0,60}") {
            let _ = from_title(&format!("sglang::scheduler{tail}"));
            let _ = from_title(&tail);
        }
    }
}
