//! Checks that docs/reference/messages.md covers exactly the lines a report's `degraded` can contain.

use std::path::{Path, PathBuf};

use probe_user::{Capability, Degraded, Feature, KernelVersion, Missing};
use responses::{UnknownWait, Unreadable};
use trace::event::MissedCause;
use trace::ledger::{Ledger, Limits};

/// Calls in the sources that add a line to `degraded`; its text is the next string literal.
const REPORT_CALLS: [&str; 6] = [
    "degraded.push(",
    ".add_degraded_line(",
    ".count_dropped_items_and_notify_once(",
    "doubts.push(",
    "self.record_problem_and_format_message(",
    "degraded.extend(refused",
];

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Entries of the page: the fixed parts of the text in each row's first cell.
fn fixed_parts_of_page_entries() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(workspace_root().join("docs/reference/messages.md")).expect("the page is there");
    let quoted = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    quoted.map(|(text, _)| parts_outside_placeholders(text, '…', '…')).collect()
}

/// Parts of `text` outside of placeholders, without those that have no letter or digit. A placeholder begins with `opening` and ends with
/// `closing`. If both are the same, that character alone is the placeholder.
fn parts_outside_placeholders(text: &str, opening: char, closing: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_inside = false;
    for c in text.chars() {
        // Nothing is inside a placeholder of one character.
        if c == opening && !is_inside {
            is_inside = opening != closing;
            parts.push(String::new());
        } else if c == closing {
            is_inside = false;
        } else if !is_inside {
            parts.last_mut().expect("there is always one").push(c);
        }
    }
    parts.retain(|part| part.chars().any(char::is_alphanumeric));
    parts
}

fn is_documented(entries: &[Vec<String>], text: &str) -> bool {
    entries.iter().any(|parts| contains_in_order(text, parts))
}

/// Returns whether the text contains all parts, one after the other.
fn contains_in_order(text: &str, parts: &[String]) -> bool {
    let mut rest = text;
    for part in parts {
        let Some((_, behind)) = rest.split_once(part.as_str()) else { return false };
        rest = behind;
    }
    true
}

/// All sources without tests, with continued string literals joined.
fn workspace_sources() -> String {
    /// Adds the sources below the folder, each up to its tests.
    fn add_sources_below(folder: &Path, sources: &mut String) {
        for entry in std::fs::read_dir(folder).expect("sources are there") {
            let path = entry.expect("it is listed").path();
            // The folder `documents` holds only tests, such as this one.
            if path.is_dir() && !path.ends_with("documents") {
                add_sources_below(&path, sources);
            } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).expect("it is text");
                sources.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
            }
        }
    }
    let mut all = String::new();
    for entry in std::fs::read_dir(workspace_root()).expect("crates are there") {
        let source = entry.expect("it is listed").path().join("src");
        if source.is_dir() && !source.starts_with(workspace_root().join("xtask")) {
            add_sources_below(&source, &mut all);
        }
    }
    join_continued_lines(&all)
}

/// Joins each line that ends with a backslash with the next one: a message can be a literal of several source lines.
fn join_continued_lines(text: &str) -> String {
    let mut joined = String::new();
    let mut continues = false;
    for line in text.lines() {
        let line = if continues { line.trim_start() } else { line };
        continues = line.ends_with('\\');
        joined.push_str(line.strip_suffix('\\').unwrap_or(line));
        if !continues {
            joined.push('\n');
        }
    }
    joined
}

#[test]
fn every_degradation_in_the_sources_is_documented() {
    let entries = fixed_parts_of_page_entries();
    let sources = workspace_sources();
    let mut texts = Vec::new();
    for call in REPORT_CALLS {
        for (call_offset, _) in sources.match_indices(call) {
            let rest = &sources[call_offset + call.len()..];
            // Text passed as a variable is found where it is created. Another function adds text of its own.
            if let Some((before, string)) = rest.split_once('"')
                && !before.contains([';', ','])
                && before.matches('(').count() < 2
            {
                let string = string.split('"').next().unwrap_or_default();
                // A number stands for each placeholder.
                texts.push(parts_outside_placeholders(string, '{', '}').join(" 7 "));
            }
        }
    }
    assert!(texts.len() > 20, "only {texts:?} were found");
    texts.retain(|text| !is_documented(&entries, text));
    assert_eq!(texts, Vec::<String>::new(), "docs/reference/messages.md has no entry for these");
}

#[test]
fn every_degradation_kind_is_documented() {
    let entries = fixed_parts_of_page_entries();
    let why = [
        Missing::Capabilities(Capability::ALL.to_vec()),
        Missing::UserNamespace,
        Missing::Filtered(Feature::Messages.required_calls().to_vec()),
        Missing::PtraceScope,
        Missing::Lockdown,
        Missing::Kernel { needs: KernelVersion::new(5, 8), runs: KernelVersion::new(5, 4) },
        Missing::KernelTypes("task_struct".into()),
        Missing::Libzmq,
        Missing::Libssl,
        Missing::Refused("Operation not permitted".into()),
    ];
    let missing = why.into_iter().map(|missing| {
        let whole = Degraded { feature: Feature::Messages, pid: None, missing };
        whole.to_string().replace(Feature::Messages.consequence_of_lack(), "")
    });
    let features = Feature::ALL.map(|feature| feature.consequence_of_lack().to_owned());
    let lost = [
        MissedCause::QueueFull,
        MissedCause::Unframed,
        MissedCause::TooLarge,
        MissedCause::CutShort,
        MissedCause::Ended,
    ];
    let lost = lost.map(|cause| serde_json::to_string(&cause).expect("it is a word"));
    let unreadable = [
        Unreadable::Tls,
        Unreadable::Fields,
        Unreadable::Grpc,
        Unreadable::Upgraded,
        Unreadable::Compressed,
        Unreadable::Head,
        Unreadable::Chunks,
        Unreadable::Frames,
        Unreadable::Transport,
    ];
    let waits = [
        UnknownWait::Unnamed,
        UnknownWait::NoResponse,
        UnknownWait::Partial,
        UnknownWait::SeveralChoices,
        UnknownWait::OtherWorker,
        UnknownWait::HeldBack,
        UnknownWait::SlowClient,
        UnknownWait::EndedEarly,
        UnknownWait::Http2,
    ];
    let limits = Ledger::new(Limits::default()).limits().into_iter().map(|reached| reached.name.to_owned());
    let texts: Vec<String> = missing
        .chain(features)
        .chain(lost)
        .chain(unreadable.map(|why| why.to_string()))
        .chain(waits.map(|why| why.to_string()))
        .chain(limits)
        .filter(|text| !is_documented(&entries, text))
        .collect();
    assert_eq!(texts, Vec::<String>::new(), "docs/reference/messages.md has no entry for these");
}

#[test]
fn every_documented_message_exists_in_the_sources() {
    let sources = workspace_sources();
    // The names of loss causes come from serde, those of capabilities from their type.
    let composed = ["queue_full", "unframed", "too_large", "cut_short", "ended", "missing CAP_"];
    let orphans: Vec<String> = fixed_parts_of_page_entries()
        .into_iter()
        .flatten()
        .filter(|part| !composed.contains(&part.as_str()) && !sources.contains(part.as_str()))
        .collect();
    assert_eq!(orphans, Vec::<String>::new(), "docs/reference/messages.md explains these words");
}
