//! What is wrong with a request, in the words its row carries.

/// One flag. The order is the order of the row's flag column: worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// Tokens are missing on the wire.
    Loss,
    /// Chunks proven lost between tokenizer and client.
    Dropped,
    /// Chunks that the release is known to drop shared a wakeup.
    DropPredicted,
    /// No chunk for long while it lives.
    Stall,
    /// Its first token waits, or waited, long.
    Gap,
    /// Its tokens are counted more than once.
    Inflated,
    /// It was aborted.
    Aborted,
    /// The scheduler has retracted it.
    Retracted,
}

impl Flag {
    /// Every flag, worst first.
    pub(crate) const ALL: [Self; 8] = [
        Self::Loss,
        Self::Dropped,
        Self::DropPredicted,
        Self::Stall,
        Self::Gap,
        Self::Inflated,
        Self::Aborted,
        Self::Retracted,
    ];

    /// As the row shows it and `flag:` asks for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Loss => "LOSS",
            Self::Dropped => "DROP!",
            Self::DropPredicted => "DROP?",
            Self::Stall => "STALL",
            Self::Gap => "GAP",
            Self::Inflated => "INFLATE",
            Self::Aborted => "ABORT",
            Self::Retracted => "RETRACT",
        }
    }

    /// What it says, for the help.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Loss => "its frames list fewer tokens than they count: some never crossed the wire",
            Self::Dropped => "tokens of it were lost between tokenizer and client: deliveries show it",
            Self::DropPredicted => "likely so: chunks shared a wakeup, and this release keeps only the last",
            Self::Stall => "it has begun, has not finished, and nothing new has come for long",
            Self::Gap => "its first token waits, or waited, long",
            Self::Inflated => "its frames list all tokens so far where new ones are meant",
            Self::Aborted => "it was aborted by the client, the scheduler or an error",
            Self::Retracted => "the scheduler took it off the batch to make room",
        }
    }

    /// The flag of that word, in any case.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.word().eq_ignore_ascii_case(word))
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The flags of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// Sets `flag` when `holds`.
    pub(crate) fn set(&mut self, flag: Flag, holds: bool) {
        if holds {
            self.0 |= flag.bit();
        }
    }

    /// Whether `flag` is set.
    pub(crate) fn has(self, flag: Flag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// Those that are set, worst first.
    pub(crate) fn iter(self) -> impl Iterator<Item = Flag> {
        Flag::ALL.into_iter().filter(move |&f| self.has(f))
    }

    /// Larger for worse. Only the worst flag counts, and an abort is none: nobody waits for its tokens.
    pub(crate) fn weight(self) -> u8 {
        let bad = self.0 & !Flag::Aborted.bit();
        Flag::ALL.len() as u8 - bad.trailing_zeros().min(Flag::ALL.len() as u32) as u8
    }

    /// Whether any flag is set.
    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_flag_decides_the_weight() {
        let (mut loss, mut rest) = (Flags::default(), Flags::default());
        loss.set(Flag::Loss, true);
        for flag in &Flag::ALL[1..] {
            rest.set(*flag, true);
        }
        assert!(loss.weight() > rest.weight());
        assert_eq!(rest.iter().next(), Some(Flag::Dropped));
        assert!(
            Flag::ALL
                .iter()
                .all(|f| Flag::parse(&f.word().to_lowercase()) == Some(*f))
        );
    }
}
