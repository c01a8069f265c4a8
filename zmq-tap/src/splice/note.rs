//! The record of a move, written before the move is made. It is sufficient for any later process to reverse the move.

use crate::relay::socket_claim::FileIdentity;

/// First line of every note about a move.
const TITLE: &str = "tokengap moved a socket, 1";
/// Separator between a socket's name and the number of its path aside.
const ASIDE: &str = ".engine-";

/// A move, as recorded in a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoveRecord {
    /// Identity of the engine's socket.
    pub(super) engine: FileIdentity,
    /// Identity of tokengap's socket; `None` in a note written before that socket existed.
    pub(super) ours: Option<FileIdentity>,
    /// Name that the engine's socket moves to: a file in the same folder.
    pub(super) aside: String,
}

impl MoveRecord {
    /// The text of the note, which [`Self::parse`] reads.
    pub(super) fn to_text(&self) -> String {
        let ours_line = self.ours.as_ref().map(|ours| format!("ours {}\n", ours.to_numbers())).unwrap_or_default();
        format!("{TITLE}\nengine {}\n{ours_line}aside {}\n", self.engine.to_numbers(), self.aside)
    }

    /// Parses the note of the socket called `socket_name`: a title, and the lines `engine IDENTITY`, `ours IDENTITY` (which may be missing)
    /// and `aside NAME`. Returns `None` for any deviation from the format.
    pub(super) fn parse(text: &str, socket_name: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        if lines.next()? != TITLE {
            return None;
        }
        let engine = FileIdentity::from_numbers(lines.next()?.strip_prefix("engine ")?)?;
        let mut line = lines.next()?;
        let mut ours = None;
        if let Some(numbers) = line.strip_prefix("ours ") {
            ours = Some(FileIdentity::from_numbers(numbers)?);
            line = lines.next()?;
        }
        let aside = line.strip_prefix("aside ")?;
        let number = aside.strip_prefix(socket_name)?.strip_prefix(ASIDE)?;
        // Rejects `+1` and `01`, which are never written.
        let is_plain_number = number.parse::<u32>().is_ok_and(|parsed| parsed.to_string() == number);
        let has_more_lines = lines.next().is_some();
        if !is_plain_number || has_more_lines {
            return None;
        }
        Some(Self { engine, ours, aside: aside.into() })
    }
}

/// The `number`th name that the socket `name` can be moved to.
pub(super) fn name_aside(name: &str, number: u32) -> String {
    format!("{name}{ASIDE}{number}")
}

/// Whether a file name is one that tokengap makes: a socket moved aside, or a note.
pub fn is_made_by_tokengap(file_name: &str) -> bool {
    if file_name.ends_with(".tokengap") {
        return true;
    }
    let Some((_socket_name, number)) = file_name.rsplit_once(ASIDE) else { return false };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> impl Strategy<Value = FileIdentity> {
        (any::<u64>(), any::<u64>(), any::<i64>(), 0..1_000_000_000_i64).prop_map(
            |(device, inode, modified_s, modified_subsec_ns)| FileIdentity {
                device,
                inode,
                modified_s,
                modified_subsec_ns,
            },
        )
    }

    proptest! {
        #[test]
        fn notes_round_trip(engine in identity(), ours in proptest::option::of(identity()),
                                   name in "[a-zA-Z0-9_.-]{1,20}", number: u32) {
            let moved = MoveRecord { engine, ours, aside: name_aside(&name, number) };
            prop_assert_eq!(MoveRecord::parse(&moved.to_text(), &name), Some(moved.clone()));
            prop_assert_eq!(MoveRecord::parse(&moved.to_text(), "another"), None);
            prop_assert!(is_made_by_tokengap(&moved.aside));
        }

        #[test]
        fn a_truncated_note_is_rejected(engine in identity(), cut in 0usize..100) {
            let text = MoveRecord { engine, ours: None, aside: name_aside("tmpab12", 7) }.to_text();
            let cut = cut.min(text.len() - 1);
            prop_assert_eq!(MoveRecord::parse(&text[..cut], "tmpab12"), None);
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>(), name in any::<String>()) {
            let read = MoveRecord::parse(&text, &name);
            prop_assert!(read.is_none());
            is_made_by_tokengap(&name);
        }
    }

    #[test]
    fn a_note_never_refers_outside_its_folder() {
        let with = |aside: &str| {
            let text = format!("{TITLE}\nengine 1 2 3.000000004\naside {aside}\n");
            MoveRecord::parse(&text, "tmpab12")
        };
        assert!(with("tmpab12.engine-1").is_some());
        for bad in ["/etc/passwd", "tmpab12.engine-../x", "../tmpab12.engine-1", "tmpab12.engine-01", "tmpab12.engine-"]
        {
            assert_eq!(with(bad), None, "{bad}");
        }
    }
}
