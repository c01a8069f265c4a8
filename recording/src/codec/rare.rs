//! Rare records: fields in sequence after their length and their number of new texts. New fields are only added at the end of a record; a
//! reader skips fields it does not know.

use trace::clock::MonoNs;
use trace::event::{
    Answer, AnswerContent, AnswerEnd, ArgumentsPart, Arrival, ArrivalTimes, Away, Capabilities, ConnectionTimes,
    CpuSample, Dispatch, DispatchedRequest, Engine, EngineTimes, FrontendWait, Hop, LoggedState, Merged, Missed,
    PairMessage, PollUse, QueueSample, Rejection, RequestTimes, SendWait, StackSample, Stage, ToolCallOutcome,
    ToolCalls, TraceParent, Traced, Undecoded, UnjudgedReason, UnknownArrival, What,
};
use trace::id::{FrameId, HopId, ThreadId};

use super::bytes::{ColumnCursor, EnumCode, MalformedBlock, PutNumber};
use super::codes::op;
use super::columns::BlockColumns;
use super::text::{TextReader, TextTable};

/// A field of a rare record, or a struct of fields.
trait RareField<'b>: Sized {
    /// Appends the field to the record that is being written.
    fn write_field(&self, writer: &mut RareWriter<'_>);
    /// Reads the field at the reader's position. Fails if the record ends too early or holds an unknown code.
    fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock>;
}

/// Kinds of records.
macro_rules! records {
    ($($op:ident $variant:ident)+) => {
        impl RareWriter<'_> {
            /// Writes the fields of an event, and returns the kind of its record. Writes nothing and returns `None` for the frequent events
            /// that have columns of their own.
            pub(super) fn write_event_fields(&mut self, what: &What<'_>) -> Option<u8> {
                match what {
                    $(What::$variant(record) => {
                        record.write_field(self);
                        Some(op::$op)
                    })+
                    What::Sent(_) | What::Received(_) | What::Processed(_) | What::Delivered(_) => None,
                }
            }
        }

        impl<'b> RareReader<'b> {
            /// Reads a record of that kind; `None` if the kind is unknown.
            pub(super) fn read_event(&mut self, kind: u8) -> Result<Option<What<'b>>, MalformedBlock> {
                Ok(Some(match kind {
                    $(op::$op => What::$variant(RareField::read_field(self)?),)+
                    _ => return Ok(None),
                }))
            }
        }
    };
}

records! {
    ENGINE Engine
    HOP Hop
    UNDECODED Undecoded
    SEND_WAIT SendWait
    CPU Cpu
    QUEUE Queue
    STACK Stack
    STAGE Stage
    LOGGED_STATE LoggedState
    MERGED Merged
    ANSWERED Answered
    FRONTEND_WAIT FrontendWait
    MISSED Missed
    DISPATCHED Dispatched
    PAIR_MESSAGE PairMessage
    ARRIVED Arrived
    TRACED Traced
    REQUEST_TIMES RequestTimes
    REJECTED Rejected
}

/// Structs, field by field in the order of writing.
macro_rules! structs {
    ($($type:ty { $($field:tt),+ })+) => {$(
        impl<'b> RareField<'b> for $type {
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                $(self.$field.write_field(writer);)+
            }

            fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
                Ok(Self { $($field: RareField::read_field(reader)?),+ })
            }
        }
    )+};
}

structs! {
    Undecoded<'b> { id, bytes, reason, forwarded }
    SendWait { hop, ns }
    CpuSample<'b> { thread, role, name, part, interval_ns, on_ns, wait_ns, throttled_ns, poll, away }
    QueueSample<'b> { hop, receive_bytes, send_bytes }
    StackSample<'b> { thread, role, function, file, interval_ns, samples, total, own, gil }
    Stage<'b> { rid, name, by, tokens, pending, gap_ns }
    LoggedState<'b> { by, states, rids, recv_wait_ns, more, cpu, cpu_system, unanswered_since }
    Merged<'b> { rid, chunks, by }
    Rejection { status }
    PairMessage { room, kind }
    FrontendWait<'b> { rid, first_token_ns, last_token_ns }
    Missed { hop, count, cause }
    Dispatch<'b> { id, bytes, kind, index, request }
    RequestTimes<'b> { rid, times, impossible }
    DispatchedRequest<'b> { rid, prompt_tokens, room, arrived_unix_ns }
    Arrival<'b> { rid, times }
    ArrivalTimes { arrived, read, connection }
    Traced<'b> { rid, parent }
    TraceParent { trace_id_high, trace_id_low, parent_id, is_sampled }
    ConnectionTimes { opened, accepted }
    Away<'b> { state, place }
    PollUse { interval_ns, polled_ns, wakeups }
    FrameId { hop, lane, seq }
    ThreadId { pid, tid }
    HopId { 0 }
    MonoNs { 0 }
}

/// A record being written.
pub(super) struct RareWriter<'a> {
    texts: &'a mut TextTable,
    columns: &'a mut BlockColumns<Vec<u8>>,
    /// The record's fields so far.
    fields: &'a mut Vec<u8>,
    /// Number of the record's texts that are new in the block.
    new_texts: u64,
}

impl<'a> RareWriter<'a> {
    /// Begins a record, whose fields are collected in `fields`.
    pub(super) fn new(
        texts: &'a mut TextTable,
        columns: &'a mut BlockColumns<Vec<u8>>,
        fields: &'a mut Vec<u8>,
    ) -> Self {
        fields.clear();
        Self { texts, columns, fields, new_texts: 0 }
    }

    /// Appends the record to the column of rare records.
    pub(super) fn finish_record(self) {
        Self::append_record(&mut self.columns.rare, self.fields, self.new_texts);
    }

    /// Appends the record to the standing data.
    pub(super) fn finish_standing(self) {
        Self::append_record(&mut self.columns.standing, self.fields, self.new_texts);
    }

    /// Appends a record's fields to a column, behind their length and the number of their new texts.
    fn append_record(column: &mut Vec<u8>, fields: &[u8], new_texts: u64) {
        column.put_number(fields.len() as u64);
        column.put_number(new_texts);
        column.extend_from_slice(fields);
    }

    /// Appends a number to the record's fields.
    pub(super) fn put_number(&mut self, value: u64) {
        self.fields.put_number(value);
    }
}

/// A record being read.
pub(super) struct RareReader<'b> {
    fields: ColumnCursor<'b>,
    texts: TextReader<'b>,
}

impl<'b> RareReader<'b> {
    /// Takes the next record from a column, so that its fields can be read. Skips its new texts in `texts` even if no field is read.
    pub(super) fn next_record(
        column: &mut ColumnCursor<'b>,
        texts: &mut TextReader<'b>,
    ) -> Result<Self, MalformedBlock> {
        let length = column.read_number()?;
        let new_texts = column.read_u32()?;
        let fields = ColumnCursor::new(column.read_bytes(length as usize)?);
        // The texts of a record of an unknown kind must be counted, too.
        texts.skip_new(new_texts);
        // A copy is enough: fields refer to texts by index, so reading them does not move the position in the texts.
        Ok(Self { fields, texts: *texts })
    }

    /// Reads the wall-clock time of an anchor.
    pub(super) fn read_wall_ns(&mut self) -> Result<u64, MalformedBlock> {
        self.fields.read_number()
    }

    /// Reads a record of `standing`, which starts with its kind. `None` if this version does not know the kind.
    pub(super) fn read_standing(&mut self) -> Result<Option<What<'b>>, MalformedBlock> {
        let kind = self.fields.read_byte()?;
        self.read_event(kind)
    }
}

/// Numbers, and numbers that may be unknown.
macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl RareField<'_> for $type {
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                writer.put_number((*self).into());
            }

            fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
                narrow_number(reader.fields.read_number()?)
            }
        }

        impl RareField<'_> for Option<$type> {
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                writer.fields.put_optional(self.map(Into::into));
            }

            fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
                reader.fields.read_optional()?.map(narrow_number).transpose()
            }
        }
    )+};
}

numbers! { u8 u16 u32 u64 }

/// Whether the bit with this number is set; the lowest is 0.
fn has_bit(flags: u64, bit: usize) -> bool {
    (flags >> bit) & 1 != 0
}

/// The number as a field's type; an error if it is too large.
fn narrow_number<T: TryFrom<u64>>(number: u64) -> Result<T, MalformedBlock> {
    T::try_from(number).map_err(|_| MalformedBlock("a number is too large for its field"))
}

impl<'b> RareField<'b> for &'b str {
    /// Writes the index of the text, after adding the text to the block if it is new.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        let text = writer.texts.add_text(self, writer.columns);
        writer.new_texts += u64::from(text.is_new);
        text.index.write_field(writer);
    }

    /// Reads the index of the text, and returns the block's text with that index.
    fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
        let index = RareField::read_field(reader)?;
        reader.texts.get(index)
    }
}

impl<T: EnumCode> RareField<'_> for T {
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        writer.fields.push(self.to_code());
    }

    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        T::from_code(reader.fields.read_byte()?)
    }
}

impl RareField<'_> for bool {
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        writer.fields.push(u8::from(*self));
    }

    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        Ok(reader.fields.read_byte()? != 0)
    }
}

impl RareField<'_> for f64 {
    /// Writes the eight bytes of the number, the lowest first.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        writer.fields.extend_from_slice(&self.to_bits().to_le_bytes());
    }

    /// Reads the eight bytes of a number, the lowest first.
    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        let bytes = reader.fields.read_bytes(8)?.try_into();
        let bytes = bytes.map_err(|_| MalformedBlock("a share is cut short"))?;
        Ok(Self::from_bits(u64::from_le_bytes(bytes)))
    }
}

impl<T: EnumCode> RareField<'_> for Option<T> {
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.map(T::to_code).write_field(writer);
    }

    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        Option::<u8>::read_field(reader)?.map(T::from_code).transpose()
    }
}

/// Optional values: written as an optional number, after a flag, or, as the last of their record, omitted if unknown.
macro_rules! options {
    (numbers: $($type:ty as $number:ty: $to:expr, $of:expr;)+) => {$(
        impl RareField<'_> for Option<$type> {
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                self.map($to).write_field(writer);
            }

            fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
                Ok(Option::<$number>::read_field(reader)?.map($of))
            }
        }
    )+};
    (flagged: $($type:ty;)+) => {$(
        impl RareField<'_> for Option<$type> {
            /// Writes whether there is a value, and then the value.
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                self.is_some().write_field(writer);
                if let Some(value) = self {
                    value.write_field(writer);
                }
            }

            fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
                bool::read_field(reader)?.then(|| RareField::read_field(reader)).transpose()
            }
        }
    )+};
    (last: $($type:ty;)+) => {$(
        impl<'b> RareField<'b> for Option<$type> {
            /// Writes the value, or nothing if there is none.
            fn write_field(&self, writer: &mut RareWriter<'_>) {
                if let Some(value) = self {
                    value.write_field(writer);
                }
            }

            fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
                (!reader.fields.is_empty()).then(|| RareField::read_field(reader)).transpose()
            }
        }
    )+};
}

options! { numbers: HopId as u16: |hop| hop.0, HopId; bool as u8: u8::from, |flag| flag != 0; }
options! { flagged: PollUse; f64; }
options! { last: MonoNs; &'b str; Away<'b>; ToolCalls; DispatchedRequest<'b>; ConnectionTimes; }

impl RareField<'_> for Result<ArrivalTimes, UnknownArrival> {
    /// Writes why the times are unknown. If they are known, writes that there is no reason, and then the times.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.err().write_field(writer);
        if let Ok(times) = self {
            times.write_field(writer);
        }
    }

    /// Reads why the times are unknown. Without a reason, the times follow.
    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        let reason: Option<UnknownArrival> = RareField::read_field(reader)?;
        if let Some(reason) = reason {
            return Ok(Err(reason));
        }
        let times = ArrivalTimes::read_field(reader)?;
        Ok(Ok(times))
    }
}

/// Added to the code of an answer's end if its content follows, from 2.9 on.
const WITH_CONTENT: u8 = 0x80;
/// Added to the same code if the finish reason and `[DONE]` follow the content, from 2.17 on.
const WITH_FINISH: u8 = 0x40;

/// The fields of 2.9.
impl RareField<'_> for AnswerContent {
    /// Writes the fields without the finish reason and `[DONE]`, which [`Answer`] writes.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.form.write_field(writer);
        self.events.write_field(writer);
        self.event_tokens_max.write_field(writer);
        self.lacks_end.write_field(writer);
    }

    /// Reads the fields without the finish reason and `[DONE]`, which [`Answer`] reads.
    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        let form = RareField::read_field(reader)?;
        let mut content = Self::new(form);
        content.events = RareField::read_field(reader)?;
        content.event_tokens_max = RareField::read_field(reader)?;
        content.lacks_end = RareField::read_field(reader)?;
        Ok(content)
    }
}

impl<'b> RareField<'b> for Answer<'b> {
    /// Writes the response that a client got. The byte that says how it ended also has flags for the parts of the content that follow.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.rid.write_field(writer);
        self.tokens.write_field(writer);
        self.completion_tokens.write_field(writer);
        // One flag for the finish reason and for `[DONE]`, which are written together.
        let has_finish = self.content.is_some_and(|content| content.finish.is_some() || content.done.is_some());
        let content_flag = if self.content.is_some() { WITH_CONTENT } else { 0 };
        let finish_flag = if has_finish { WITH_FINISH } else { 0 };
        writer.fields.push(self.end.to_code() | content_flag | finish_flag);
        self.short_writes.write_field(writer);
        self.unacknowledged.write_field(writer);
        if let Some(content) = &self.content {
            content.write_field(writer);
            if has_finish {
                content.finish.write_field(writer);
                content.done.write_field(writer);
            }
        }
        self.tool_calls.write_field(writer);
    }

    /// Reads the response that a client got. The byte that says how it ended also has flags for the parts of the content that follow.
    fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
        let rid = RareField::read_field(reader)?;
        let tokens = RareField::read_field(reader)?;
        let completion_tokens = RareField::read_field(reader)?;
        let mut answer = Answer::new(rid, tokens, completion_tokens);
        // The byte has flags beside the code.
        let end_code = reader.fields.read_byte()?;
        answer.end = AnswerEnd::from_code(end_code & !(WITH_CONTENT | WITH_FINISH))?;
        answer.short_writes = RareField::read_field(reader)?;
        answer.unacknowledged = RareField::read_field(reader)?;
        if end_code & WITH_CONTENT != 0 {
            let mut content = AnswerContent::read_field(reader)?;
            if end_code & WITH_FINISH != 0 {
                content.finish = RareField::read_field(reader)?;
                content.done = RareField::read_field(reader)?;
            }
            answer.content = Some(content);
        }
        answer.tool_calls = RareField::read_field(reader)?;
        Ok(answer)
    }
}

/// Reads a time that may be unknown.
fn read_time(reader: &mut RareReader<'_>) -> Result<Option<MonoNs>, MalformedBlock> {
    Ok(Option::<u64>::read_field(reader)?.map(MonoNs))
}

impl RareField<'_> for EngineTimes {
    /// Writes each time as an optional number of nanoseconds.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        for time in [self.queued, self.batch_entered, self.prefill_finished] {
            time.map(|at| at.0).write_field(writer);
        }
    }

    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        Ok(Self { queued: read_time(reader)?, batch_entered: read_time(reader)?, prefill_finished: read_time(reader)? })
    }
}

impl RareField<'_> for ToolCalls {
    /// Writes how the tool calls of a response differ from the engine's text, in the order in which the format got the fields.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.calls.write_field(writer);
        self.call.write_field(writer);
        self.outcome.write_field(writer);
        self.finish.write_field(writer);
        // An optional position: without one, no part differs, and the part's other fields are left out.
        self.part.map(|part| part.at).write_field(writer);
        if let Some(part) = self.part {
            part.chars.write_field(writer);
            part.tokens[0].write_field(writer);
            part.tokens[1].write_field(writer);
            part.whole_chunks.write_field(writer);
        }
        // Added in version 2.7. They come behind the older fields, so that an older reader can skip them.
        self.absent.write_field(writer);
        self.events.write_field(writer);
        if let Some(part) = self.part {
            part.events[0].write_field(writer);
            part.events[1].write_field(writer);
            part.whole_events.write_field(writer);
        }
        // From 2.8 on.
        self.reason.write_field(writer);
    }

    /// Reads how the tool calls of a response differ from the engine's text. Fields that an older file lacks keep their defaults.
    fn read_field(reader: &mut RareReader<'_>) -> Result<Self, MalformedBlock> {
        let mut calls = Self {
            calls: RareField::read_field(reader)?,
            absent: 0,
            call: RareField::read_field(reader)?,
            outcome: RareField::read_field(reader)?,
            reason: None,
            finish: RareField::read_field(reader)?,
            events: 0,
            part: None,
        };
        // An optional position: without one, no part follows.
        if let Some(at) = RareField::read_field(reader)? {
            calls.part = Some(ArgumentsPart {
                at,
                chars: RareField::read_field(reader)?,
                tokens: [RareField::read_field(reader)?, RareField::read_field(reader)?],
                whole_chunks: RareField::read_field(reader)?,
                events: [0, 0],
                whole_events: false,
            });
        }
        // Files before 2.7 end here.
        if !reader.fields.is_empty() {
            calls.absent = RareField::read_field(reader)?;
            calls.events = RareField::read_field(reader)?;
            if let Some(part) = &mut calls.part {
                part.events = [RareField::read_field(reader)?, RareField::read_field(reader)?];
                part.whole_events = RareField::read_field(reader)?;
            }
        }
        let has_reason = !reader.fields.is_empty();
        if has_reason {
            calls.reason = RareField::read_field(reader)?;
        } else if calls.outcome == ToolCallOutcome::Unjudged {
            // Files before 2.8 have no reason: there, unjudged calls differ.
            calls.reason = Some(UnjudgedReason::Differs);
        }
        Ok(calls)
    }
}

impl<'b> RareField<'b> for Engine<'b> {
    /// Writes the fields. Without a version, writes that it is unknown and an empty text.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.version.is_some().write_field(writer);
        self.version.unwrap_or("").write_field(writer);
        self.mode.write_field(writer);
        self.waiter.write_field(writer);
        self.turnaround.write_field(writer);
        self.name.write_field(writer);
    }

    /// Reads the announcement of an engine. The version is `None` if the record says that it is unknown.
    fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
        let has_version = bool::read_field(reader)?;
        // The text is always present, even if it stands for none.
        let version = RareField::read_field(reader)?;
        Ok(Self {
            version: if has_version { Some(version) } else { None },
            mode: RareField::read_field(reader)?,
            waiter: RareField::read_field(reader)?,
            turnaround: RareField::read_field(reader)?,
            name: RareField::read_field(reader)?,
        })
    }
}

impl<'b> RareField<'b> for Hop<'b> {
    /// Writes a hop (channel between two processes): its id, ends and endpoint, and all of its flags as the bits of one number.
    fn write_field(&self, writer: &mut RareWriter<'_>) {
        self.id.write_field(writer);
        self.ends.to_string().as_str().write_field(writer);
        self.endpoint.write_field(writer);
        self.worker.write_field(writer);
        let flags = [
            self.origin,
            self.last,
            self.capabilities.sent,
            // Obsolete: whether forwards have records of their own, as in files before 2.6.
            false,
            self.capabilities.received,
            self.capabilities.processed,
            self.capabilities.delivered,
            self.capabilities.forwarded,
            // From 2.11 on.
            self.carries_requests,
        ];
        let mut bits = 0;
        // The first flag becomes the lowest bit.
        for flag in flags.into_iter().rev() {
            bits = (bits << 1) | u64::from(flag);
        }
        writer.put_number(bits);
    }

    /// Reads a hop (channel between two processes): its id, ends and endpoint, and all of its flags as the bits of one number.
    fn read_field(reader: &mut RareReader<'b>) -> Result<Self, MalformedBlock> {
        let id = RareField::read_field(reader)?;
        let name = <&str>::read_field(reader)?;
        let endpoint = RareField::read_field(reader)?;
        let worker = RareField::read_field(reader)?;
        let bits = reader.fields.read_number()?;
        // The flags from the lowest bit on, in the order of `write_field`.
        let flags: [bool; 9] = std::array::from_fn(|bit| has_bit(bits, bit));
        let [origin, last, sent, _obsolete, received, processed, delivered, forwarded, carries_requests] = flags;
        Ok(Self {
            id,
            ends: name.into(),
            endpoint,
            worker,
            origin,
            last,
            carries_requests,
            capabilities: Capabilities { sent, forwarded, received, processed, delivered },
        })
    }
}
