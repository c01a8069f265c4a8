//! Access lines of the HTTP server (uvicorn): requests to the engine that were answered with an error status. They name no request and no
//! engine.

use logs::{LineForm, MalformedLine, Statement, StatementKind};

/// Name of the form.
const NAME: &str = "access-error";

/// Requests to this endpoint that were answered with a status from 400 on: the marks end with its first digit. Inside a JSON text, the
/// quote before it is escaped.
macro_rules! rejections {
    ($path:literal) => {
        [
            LineForm { mark: concat!("POST ", $path, " HTTP/1.1\" 4"), name: NAME, parse: read_client_error },
            LineForm { mark: concat!("POST ", $path, " HTTP/1.1\" 5"), name: NAME, parse: read_server_error },
            LineForm { mark: concat!("POST ", $path, " HTTP/1.1\\\" 4"), name: NAME, parse: read_client_error },
            LineForm { mark: concat!("POST ", $path, " HTTP/1.1\\\" 5"), name: NAME, parse: read_server_error },
        ]
    };
}

/// Rejected requests by endpoint, of the endpoints that pass requests to the scheduler.
const REJECTIONS: [[LineForm; 4]; 9] = [
    rejections!("/generate"),
    rejections!("/v1/completions"),
    rejections!("/v1/chat/completions"),
    rejections!("/v1/responses"),
    rejections!("/v1/messages"),
    rejections!("/v1/embeddings"),
    rejections!("/v1/rerank"),
    rejections!("/encode"),
    rejections!("/classify"),
];

/// The same in one list.
pub(super) const FORMS: &[LineForm] = REJECTIONS.as_flattened();

/// The line in which the server says its address.
pub(super) const ADDRESS: LineForm =
    LineForm { mark: "Uvicorn running on http", name: "server-address", parse: read_server_address };

/// Parses the rest of a status from 400 on: `29 Too Many Requests`.
fn read_client_error(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Statement<'_>)) -> Result<(), MalformedLine> {
    read_rejection_status(400, rest, sink)
}

/// Parses the rest of a status from 500 on: `03 Service Unavailable`.
fn read_server_error(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Statement<'_>)) -> Result<(), MalformedLine> {
    read_rejection_status(500, rest, sink)
}

/// Parses the last two digits of a status and its phrase, which end the line. `first_digit_as_hundreds` is its first digit as 400 or 500.
fn read_rejection_status(
    first_digit_as_hundreds: u16,
    text_behind_digit: &str,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let (digits, phrase) = text_behind_digit.split_at_checked(2).ok_or(MalformedLine)?;
    let phrase = phrase.trim_end();
    let is_behind_space = phrase.is_empty() || phrase.starts_with(' ');
    let has_only_words = phrase.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b' ' | b'-' | b'\''));
    let has_only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    // The log may quote a prompt that contains such a line. Other text then follows, by which the quotation is recognised.
    if !(is_behind_space && has_only_words && has_only_digits) {
        return Err(MalformedLine);
    }
    let last_digits: u16 = digits.parse().map_err(|_| MalformedLine)?;
    let kind = StatementKind::Rejected { status: first_digit_as_hundreds + last_digits };
    sink(&Statement { wall_ns: None, is_rid_truncated: false, kind });
    Ok(())
}

/// Parses the server's address in the text behind `http`: `://127.0.0.1:30000 (Press CTRL+C to quit)`, or the same with the `s` of `https`.
fn read_server_address(
    text_behind_http: &str,
    _: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let address =
        text_behind_http.strip_prefix('s').unwrap_or(text_behind_http).strip_prefix("://").ok_or(MalformedLine)?;
    let address = address.split_whitespace().next().ok_or(MalformedLine)?;
    sink(&Statement { wall_ns: None, is_rid_truncated: false, kind: StatementKind::ServerAddress(address) });
    Ok(())
}
