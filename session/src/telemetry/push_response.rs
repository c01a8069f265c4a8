//! Response of the OTLP receiver to a body: what it has rejected, and when it wants another attempt.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body as _, Bytes, Incoming};
use serde_json::Value;

/// Response of the receiver to a body.
pub(super) struct ReceiverResponse {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) text: String,
}

/// Items of a body that the receiver has rejected for good, and why.
#[derive(Default)]
pub(super) struct RejectedItems {
    pub(super) count: u64,
    pub(super) why: String,
}

/// Next part of a response's body; `None` at its end.
pub async fn next_body_part(body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await? {
            Ok(frame) => {
                // Trailers contain nothing.
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Parses the header `Retry-After`: seconds or a date. A date in the past means no pause. `None` if the text is neither.
pub(super) fn parse_retry_after(text: &str, now: jiff::Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    Some(Duration::try_from(date.timestamp().duration_since(now)).unwrap_or_default())
}

/// Parses a count in the JSON of Protobuf, which writes a 64-bit number as text. Some receivers write a number. `None` for anything else.
fn parse_protobuf_count(count: &Value) -> Option<u64> {
    let number = count.as_u64();
    if number.is_some() {
        return number;
    }
    count.as_str()?.parse().ok()
}

/// Parses the items that the receiver rejected from the text of a successful response. A text without them means that none was rejected.
pub(super) fn parse_partial_success(response_text: &str) -> RejectedItems {
    let Ok(response) = serde_json::from_str::<Value>(response_text) else { return RejectedItems::default() };
    let partial = &response["partialSuccess"];
    let rejected =
        ["rejectedSpans", "rejectedDataPoints"].iter().find_map(|name| parse_protobuf_count(&partial[*name]));
    RejectedItems { count: rejected.unwrap_or(0), why: partial["errorMessage"].as_str().unwrap_or_default().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_parses_seconds_and_dates() {
        let now: jiff::Timestamp = "2015-10-21T07:28:00Z".parse().expect("a time");
        assert_eq!(parse_retry_after("7", now), Some(Duration::from_secs(7)));
        let date = "Wed, 21 Oct 2015 07:28:30 GMT";
        assert_eq!(parse_retry_after(date, now), Some(Duration::from_secs(30)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("soon", now), None);
    }

    #[test]
    fn partial_success_counts_rejected_items() {
        let rejection = parse_partial_success(r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#);
        assert_eq!((rejection.count, rejection.why.as_str()), (3, "too old"));
        for no_rejection in ["", "{}", "ok", r#"{"partialSuccess":{}}"#] {
            assert_eq!(parse_partial_success(no_rejection).count, 0, "{no_rejection}");
        }
    }
}
