//! Names of enum variants in exports.

use crate::event::{AnswerEnd, Kind, MissedCause, ThreadPart};

pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::TokenIds => "token-ids",
        Kind::Text => "text",
        Kind::Embedding => "embedding",
        Kind::Multimodal => "multimodal",
        Kind::Abort => "abort",
        Kind::Control => "control",
        Kind::Failed => "failed",
    }
}

pub(super) fn end(end: AnswerEnd) -> &'static str {
    match end {
        AnswerEnd::Whole => "whole",
        AnswerEnd::ClientLeft => "client-left",
        AnswerEnd::ServerLeft => "server-left",
    }
}

pub(super) fn cause(cause: MissedCause) -> &'static str {
    match cause {
        MissedCause::QueueFull => "queue-full",
        MissedCause::Unframed => "unframed",
        MissedCause::TooLarge => "too-large",
        MissedCause::CutShort => "cut-short",
        MissedCause::Ended => "ended",
    }
}

pub(super) fn part(part: ThreadPart) -> &'static str {
    match part {
        ThreadPart::Main => "main",
        ThreadPart::Io => "io",
        ThreadPart::Other => "other",
    }
}
