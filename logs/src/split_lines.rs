//! Joins the parts of lines that a container runtime split: the tags `P` and `F` of CRI logs, and Docker's JSON records without a line end.

use memchr::memmem;

/// A shorter line is never the first part: runtimes split at 16 KiB.
pub(super) const SHORTEST_FIRST_PART_BYTES: usize = 1024;
/// Docker's buffer: a part that is not the last has exactly this length.
const DOCKER_PART_BYTES: usize = 16 * 1024;
/// Bytes before the text of a line in Docker's records.
const DOCKER_BEGIN: &[u8] = b"{\"log\":\"";
/// Bytes behind the text, up to the name of the stream without its `out` or `err`.
const DOCKER_STREAM: &[u8] = b"\",\"stream\":\"std";

/// A line as the runtime wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinePart<'l> {
    /// 0 for the process's standard output, 1 for its standard error.
    stream: usize,
    /// Bytes of the runtime before the process's text.
    prefix: &'l [u8],
    text: &'l [u8],
    /// Bytes of the runtime behind it.
    suffix: &'l [u8],
    /// The line ends with this part.
    is_last: bool,
}

/// What to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinResult {
    /// Use the line itself.
    Whole,
    /// Read on: the line is a part of a longer one.
    Pending,
    /// Use the joined line of this stream.
    Complete(usize),
}

/// Parts of unfinished lines, by stream. A joined line is cut at the length limit.
#[derive(Debug, Default)]
pub(super) struct SplitLineJoiner {
    lines: [Vec<u8>; 2],
    /// Stream whose line was passed on, and is freed by the next call.
    passed_stream: Option<usize>,
}

impl SplitLineJoiner {
    /// Adds the next line of the file. A container runtime splits long lines into parts, and marks each with its stream, standard output or
    /// standard error. Returns whether this line is whole, a part with more to follow, or the last part of a line. The parts of each
    /// stream are joined separately.
    pub(super) fn add_line(&mut self, line: &[u8], max_line_bytes: usize) -> JoinResult {
        // The caller has used the line that the last call may have returned.
        self.free_passed_line();
        // If no line waits for another part, this line could only be a first part, and those are long.
        if self.is_idle() && line.len() < SHORTEST_FIRST_PART_BYTES {
            return JoinResult::Whole;
        }
        let Some(part) = parse_cri_part(line).or_else(|| parse_docker_part(line)) else { return JoinResult::Whole };
        let joined = &mut self.lines[part.stream];
        // A last part without earlier ones is a whole line.
        if joined.is_empty() && part.is_last {
            return JoinResult::Whole;
        }
        append_part_within_limit(joined, &part, max_line_bytes);
        if !part.is_last {
            return JoinResult::Pending;
        }
        joined.extend_from_slice(part.suffix);
        // Lets the next call free the joined line.
        self.passed_stream = Some(part.stream);
        JoinResult::Complete(part.stream)
    }

    /// Whether no line is unfinished.
    pub(super) fn is_idle(&self) -> bool {
        self.lines.iter().all(Vec::is_empty)
    }

    /// Stream of a line whose last part is missing at the end of the file; `None` without one. The caller reads that line before the next
    /// call, which frees it.
    pub(super) fn take_stream_of_unfinished_line(&mut self) -> Option<usize> {
        self.free_passed_line();
        self.passed_stream = self.lines.iter().position(|line| !line.is_empty());
        self.passed_stream
    }

    /// The line of this stream, as far as it was joined.
    pub(super) fn joined_line(&self, stream: usize) -> &[u8] {
        &self.lines[stream]
    }

    /// Frees the line that was passed on, because long lines are rare.
    fn free_passed_line(&mut self) {
        if let Some(stream) = self.passed_stream.take() {
            self.lines[stream] = Vec::new();
        }
    }
}

/// Appends the text of a part to the joined line. The runtime's bytes before the text are kept once.
fn append_part_within_limit(joined: &mut Vec<u8>, part: &LinePart<'_>, max_line_bytes: usize) {
    if joined.is_empty() {
        joined.extend_from_slice(part.prefix);
    }
    // One byte more than the maximum shows that the line is too long. The rest is not kept.
    let free_bytes = (max_line_bytes + 1).saturating_sub(joined.len());
    joined.extend_from_slice(&part.text[..part.text.len().min(free_bytes)]);
}

/// Parses a line of a CRI runtime, `2026-11-21T07:35:22.000Z stderr P text`. `None` for any other line.
fn parse_cri_part(line: &[u8]) -> Option<LinePart<'_>> {
    /// A longer word is neither a timestamp nor the tags.
    const LONGEST_WORD: usize = 40;
    let stamp_bytes = line.iter().take(LONGEST_WORD).position(|&byte| byte == b' ')?;
    let rest = &line[stamp_bytes + 1..];
    let stream = stream_index(rest)?;
    // The names of both streams have the length of `stdout`.
    let tags = rest[b"stdout".len()..].strip_prefix(b" ")?;
    let tags_bytes = tags.iter().take(LONGEST_WORD).position(|&byte| byte == b' ')?;
    // The first of the tags, which colons separate, is `P` if another part follows and `F` for a whole line or a last part.
    let is_last = match tags[..tags_bytes].split(|&byte| byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    let text = &tags[tags_bytes + 1..];
    let prefix = &line[..line.len() - text.len()];
    Some(LinePart { stream, prefix, text, suffix: b"", is_last })
}

/// Parses a log record of Docker, which is a part of a line or a whole one: `{"log":"text","stream":"stderr","time":".."}`. `None` for any
/// other line.
fn parse_docker_part(line: &[u8]) -> Option<LinePart<'_>> {
    let log = line.strip_prefix(DOCKER_BEGIN)?;
    // The text ends at the last `","stream":"std`, because it may itself quote such a record.
    let end = memmem::rfind(log, DOCKER_STREAM)?;
    let (text, suffix) = log.split_at(end);
    // `std` at the end of the constant is the start of the stream's name.
    let stream = stream_index(&suffix[DOCKER_STREAM.len() - b"std".len()..])?;
    // A part that others follow has no line end, and exactly the length at which Docker splits. Without a line end but with another length,
    // it is a line from which a collector removed the end.
    let is_last = ends_with_escaped_newline(text) || count_decoded_bytes(text) != DOCKER_PART_BYTES;
    Some(LinePart { stream, prefix: DOCKER_BEGIN, text, suffix, is_last })
}

/// Index of the stream whose name is at the start of `text`. `None` without one.
fn stream_index(text: &[u8]) -> Option<usize> {
    [&b"stdout"[..], b"stderr"].iter().position(|name| text.starts_with(name))
}

/// Whether a JSON string ends in an escaped line end.
fn ends_with_escaped_newline(json: &[u8]) -> bool {
    let Some(rest) = json.strip_suffix(b"n") else { return false };
    let backslashes = rest.iter().rev().take_while(|&&byte| byte == b'\\').count();
    // Each pair of backslashes stands for one in the text. Only a backslash without a pair escapes the `n`.
    backslashes % 2 == 1
}

/// Number of bytes of log text that Docker encoded as this JSON string. A Unicode escape stands for all bytes of its character, or for a
/// single byte that was not UTF-8.
fn count_decoded_bytes(json: &[u8]) -> usize {
    let mut decoded = 0;
    let mut index = 0;
    while let Some(&byte) = json.get(index) {
        if let Some(code) = unicode_escape_at(json, index) {
            decoded += bytes_before_escape(code);
            // All these escapes have the same length.
            index += br"\uffff".len();
        } else {
            decoded += 1;
            index += if byte == b'\\' { br"\n".len() } else { 1 };
        }
    }
    decoded
}

/// Number of bytes that Docker read for an escaped character. The replacement character stands for one byte.
fn bytes_before_escape(code: u32) -> usize {
    let is_replacement = code == 0xfffd;
    if is_replacement { 1 } else { char::from_u32(code).map_or(1, char::len_utf8) }
}

/// The code of an escape such as `\u00e9` at `at`; `None` for anything else.
fn unicode_escape_at(json: &[u8], at: usize) -> Option<u32> {
    let digits = json[at..].strip_prefix(br"\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the text as readers get them.
    fn joined(lines: &[Vec<u8>], max_line_bytes: usize) -> Vec<Vec<u8>> {
        let mut joiner = SplitLineJoiner::default();
        let mut found = Vec::new();
        for line in lines {
            match joiner.add_line(line, max_line_bytes) {
                JoinResult::Whole => found.push(line.clone()),
                JoinResult::Pending => {}
                JoinResult::Complete(stream) => found.push(joiner.joined_line(stream).to_vec()),
            }
        }
        while let Some(stream) = joiner.take_stream_of_unfinished_line() {
            found.push(joiner.joined_line(stream).to_vec());
        }
        found
    }

    fn long(letter: char) -> String {
        letter.to_string().repeat(SHORTEST_FIRST_PART_BYTES)
    }

    #[test]
    fn parts_of_a_cri_line_are_joined_by_stream() {
        let [a, b, c] = ['a', 'b', 'c'].map(long);
        let lines = [
            format!("2026-11-21T07:35:22.1Z stderr P {a}"),
            format!("2026-11-21T07:35:22.2Z stdout P {b}"),
            String::from("2026-11-21T07:35:22.3Z stderr P:x more"),
            String::from("no runtime wrote this"),
            String::from("2026-11-21T07:35:22.4Z stderr F end"),
            String::from("2026-11-21T07:35:22.5Z stderr F short"),
            format!("2026-11-21T07:35:22.6Z stderr P {c}"),
        ]
        .map(String::into_bytes);
        let wanted = [
            String::from("no runtime wrote this"),
            format!("2026-11-21T07:35:22.1Z stderr P {a}moreend"),
            String::from("2026-11-21T07:35:22.5Z stderr F short"),
            format!("2026-11-21T07:35:22.2Z stdout P {b}"),
            format!("2026-11-21T07:35:22.6Z stderr P {c}"),
        ]
        .map(String::into_bytes);
        assert_eq!(joined(&lines, 1 << 20), wanted);
    }

    /// The records of a text, written as Docker does.
    fn docker_records(text: &str) -> Vec<Vec<u8>> {
        let parts = text.as_bytes().chunks(DOCKER_PART_BYTES);
        parts
            .map(|part| {
                let text = serde_json::to_string(&String::from_utf8_lossy(part)).unwrap();
                format!("{{\"log\":{text},\"stream\":\"stderr\",\"time\":\"2026-11-21T07:35:22.5Z\"}}").into_bytes()
            })
            .collect()
    }

    #[test]
    fn parts_of_a_docker_record_are_joined() {
        let text = format!("Finish: \"{}\\n{}\u{1}\n", "x".repeat(20_000), "y".repeat(30_000));
        let records = docker_records(&text);
        assert_eq!(records.len(), 4);
        let found = joined(&records, 1 << 20);
        assert_eq!(found.len(), 1);
        let record: serde_json::Value = serde_json::from_slice(&found[0]).unwrap();
        assert_eq!(record["log"], text);
        // A collector's records without line ends stay apart.
        let lines = [r#"{"log":"a","stream":"stderr"}"#, r#"{"log":"b","stream":"stderr"}"#]
            .map(|line| line.as_bytes().to_vec());
        assert_eq!(joined(&lines, 1 << 20), lines);
    }

    #[test]
    fn a_joined_line_is_cut_at_the_limit() {
        let part = |tag| format!("2026-11-21T07:35:22.1Z stderr {tag} {}", "x".repeat(5_000)).into_bytes();
        let mut lines: Vec<_> = (0..100).map(|_| part("P")).collect();
        lines.push(part("F"));
        let found = joined(&lines, 20_000);
        assert_eq!((found.len(), found[0].len()), (1, 20_001), "one byte more shows that it is cut");
    }

    proptest::proptest! {
        #[test]
        fn parts_of_any_lines_lose_no_line(tags in proptest::collection::vec((0_usize..4, 0_usize..3_000), 0..40)) {
            let lines: Vec<Vec<u8>> = (tags.iter())
                .map(|(form, length)| {
                    let head = ["t stderr P ", "t stderr F ", "t stdout P ", ""][*form];
                    format!("{head}{}", "z".repeat(*length)).into_bytes()
                })
                .collect();
            let all = |lines: &[Vec<u8>]| lines.iter().flatten().filter(|&&byte| byte == b'z').count();
            proptest::prop_assert_eq!(all(&joined(&lines, 1 << 20)), all(&lines));
        }

        #[test]
        fn parsing_any_part_never_panics(line: Vec<u8>, json: String) {
            let _ = parse_cri_part(&line);
            let _ = parse_docker_part(format!("{{\"log\":\"{json}\",\"stream\":\"stdout\"}}").as_bytes());
        }
    }
}
