//! A recording played at its original pace or another speed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Instant;

use recording::{ReadError, Record, RecordReader, Recording};
use session::playback::{FindingKey, Play, PlaybackState, Position, Speed};
use session::{About, Flow, Session, Source};
use trace::clock::Anchor;
use trace::detect::Finding;
use trace::{Analysis, MonoNs, ReportInput, words};

use crate::player::Player;

/// Recorded time that one poll plays, so that keys are read in between.
const STEP_NS: u64 = 50_000_000;
/// Maximum number of records analysed again to seek backwards. Beyond it, playback starts at a later block and reports that.
const MAX_REPLAYED: u64 = 8_000_000;

/// A recording being played.
pub struct Playback<'r> {
    recording: &'r Recording,
    reader: RecordReader<'r>,
    closing: ReportInput,
    player: Player,
    /// End of the current step, in recorded time.
    step_end: MonoNs,
    /// Findings shown so far.
    known_findings: HashSet<FindingKey>,
    /// When each finding was first shown. Kept when playback restarts, because a seek back goes there.
    first_shown: HashMap<FindingKey, MonoNs>,
    /// Finding that the last command sought.
    sought_finding: Option<FindingKey>,
    is_stopped: bool,
}

/// Findings that were shown, in the order of the analysis.
struct ShownFindings {
    keys: Vec<FindingKey>,
    /// Time to which a seek plays to show the finding at the same index again.
    seek_targets: Vec<MonoNs>,
}

impl<'r> Playback<'r> {
    /// Starts at the beginning of the recording; `None` if it contains no events.
    pub fn new(recording: &'r Recording, speed: Speed) -> Option<Self> {
        let (first, last) = recording.span()?;
        Some(Self {
            recording,
            reader: recording.reader(),
            closing: recording.closing().cloned().unwrap_or_default(),
            player: Player::new(first, last, speed),
            step_end: MonoNs::default(),
            known_findings: HashSet::new(),
            first_shown: HashMap::new(),
            sought_finding: None,
            is_stopped: false,
        })
    }

    /// Returns whether the whole recording has been played.
    pub fn has_ended(&self) -> bool {
        self.player.has_ended
    }

    /// Goes back to an earlier block of the recording. Playback then runs from there up to `target_time`, because an analysis cannot run
    /// backwards. The caller starts a new analysis.
    fn rewind_to_block_before(&mut self, target_time: MonoNs) {
        let block = first_block_to_replay(self.recording, target_time);
        self.reader = self.recording.reader_at(block);
        // A start at a later block is reported, because the analysis lacks what came before.
        let later_start = (block > 0).then(|| self.recording.blocks()[block].from);
        self.player.restart_at(later_start);
        self.step_end = MonoNs::default();
        // The new analysis shows each finding again.
        self.known_findings.clear();
    }

    /// Plays records until the recorded time of one step has passed. Returns earlier at the end of the recording, and at a block that
    /// cannot be read.
    fn play_one_step(&mut self, session: &mut Session) -> Flow {
        loop {
            let played_to = match self.reader.next() {
                Ok(Some(Record::Event(event))) => {
                    session.process_event(&event);
                    event.at
                }
                Ok(Some(Record::Tick(at))) => {
                    session.process_tick(at, self);
                    self.note_new_findings_and_end_seek(session);
                    at
                }
                // The recording read both when it was opened.
                Ok(Some(Record::Anchor(_) | Record::Closing(_))) => continue,
                Ok(None) => {
                    self.end_playback_and_notify(session);
                    return Flow::Ended;
                }
                Err(error) => {
                    self.report_read_error_and_pause_if_fatal(&error, session);
                    return Flow::Busy;
                }
            };
            let is_step_played = played_to >= self.step_end;
            if is_step_played {
                self.step_end = MonoNs(played_to.0.saturating_add(STEP_NS));
                self.player.advance_to(played_to);
                return Flow::Busy;
            }
        }
    }

    /// Stops at the end of the recording. Tells a user who has asked for the next finding that there is none.
    fn end_playback_and_notify(&mut self, session: &mut Session) {
        if self.player.seeks_finding() {
            session.notify("no further finding before the end".into());
        }
        self.player.stop_at_end();
    }

    /// Reports a block that cannot be read. Playback goes on behind a damaged block. After another error it pauses, and the user decides.
    fn report_read_error_and_pause_if_fatal(&mut self, error: &ReadError, session: &mut Session) {
        session.add_degraded_line(format!("recording: {error}"));
        session.notify(format!("! recording: {error}"));
        let may_go_on = matches!(error, ReadError::Damaged { .. });
        if !may_go_on {
            self.player.pause();
        }
    }

    /// The present findings that have been shown, with the times to which a seek plays to show them again.
    fn findings_shown_so_far(&self, analysis: &Analysis) -> ShownFindings {
        let mut keys = Vec::new();
        let mut seek_targets = Vec::new();
        for finding in analysis.findings() {
            let key = FindingKey::from(finding);
            if let Some(found_at) = self.first_shown.get(&key) {
                // One nanosecond after the tick that found it, so that a seek to this time plays that tick, too.
                seek_targets.push(MonoNs(found_at.0.saturating_add(1)));
                keys.push(key);
            }
        }
        ShownFindings { keys, seek_targets }
    }

    /// Notes when each finding is shown for the first time. If the user seeks the next finding, playback pauses at a new one. Of several
    /// new findings, the worst counts as the one that was sought.
    fn note_new_findings_and_end_seek(&mut self, session: &Session) {
        let now = session.analysis().ledger().now();
        let mut worst_new: Option<&Finding> = None;
        for finding in session.analysis().findings() {
            let key = FindingKey::from(finding);
            if self.known_findings.contains(&key) {
                continue;
            }
            self.first_shown.entry(key.clone()).or_insert(now);
            self.known_findings.insert(key);
            // The analysis lists the worst finding first.
            worst_new.get_or_insert(finding);
        }
        if let Some(finding) = worst_new
            && self.player.seeks_finding()
        {
            self.sought_finding = Some(finding.into());
            // Pauses at the tick that found it, so the position on the screen is up to date.
            self.player.advance_to(now);
            self.player.pause();
        }
    }
}

impl Source for Playback<'_> {
    /// Plays the recorded time of one step, if the next record is due.
    fn poll(&mut self, session: &mut Session) -> Flow {
        if let Some(to) = self.player.restart_to.take() {
            self.rewind_to_block_before(to);
            session.restart(self.recording.header().config);
        }
        if self.is_stopped || self.player.has_ended {
            return Flow::Ended;
        }
        if !self.player.is_next_record_due(Instant::now()) {
            return Flow::Idle;
        }
        self.play_one_step(session)
    }

    fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Executes a playback command of the user. If it seeks the previous finding, remembers which finding that is, so that the screen can
    /// select it.
    fn execute_playback_command(&mut self, command: Play, analysis: &Analysis) {
        let ShownFindings { keys, seek_targets } = self.findings_shown_so_far(analysis);
        self.player.execute_command(command, &seek_targets);
        self.sought_finding = None;
        // To go back to a finding, the player sets `restart_to` to the time at which it was shown.
        if command == Play::PreviousFinding
            && let Some(target) = self.player.restart_to
        {
            let sought = seek_targets.iter().zip(keys).find(|(seek_target, _)| **seek_target == target);
            self.sought_finding = sought.map(|(_, key)| key);
        }
    }
}

impl About for Playback<'_> {
    fn kind(&self) -> &str {
        &self.recording.header().source
    }

    fn degraded_lines(&self) -> Vec<String> {
        let missing = self.recording.missing().map(|missing| format!("recording: {missing}"));
        self.closing.degraded.iter().map(words::json_text).chain(missing).collect()
    }

    /// Position of the playback, with the finding that was sought once it is reached.
    fn position(&self) -> Option<Position> {
        let wall_ns = self.recording.wall_ns(self.player.played_to);
        let position = self.player.position(Some(wall_ns));
        let is_reached = position.doing != PlaybackState::Seeking;
        let sought = if is_reached { self.sought_finding.clone() } else { None };
        Some(Position { sought, ..position })
    }

    fn file(&self) -> Option<&Path> {
        Some(self.recording.path())
    }

    fn observer_statement(&self) -> Option<&ReportInput> {
        Some(&self.closing)
    }

    fn wall(&self) -> Option<Anchor> {
        self.closing.wall.or(Some(self.recording.header().anchor))
    }
}

/// Block at which the analysis starts in order to reach `target_time`: the first one, or a later one if too many records lie in between.
fn first_block_to_replay(recording: &Recording, target_time: MonoNs) -> usize {
    let blocks = recording.blocks();
    let blocks_until_target = blocks.partition_point(|block| block.from <= target_time);
    let mut records = 0u64;
    for (index, block) in blocks[..blocks_until_target].iter().enumerate().rev() {
        records += u64::from(block.records) + u64::from(block.chunks);
        if records > MAX_REPLAYED {
            // Playback starts at the block after this one, but not behind the last of these blocks, which contains `target_time`.
            return (index + 1).min(blocks_until_target - 1);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use outputs::report::Report;
    use recording::analyse;
    use session::NoObserver;
    use session::sink::Sink;
    use trace::Config;
    use trace::engine::Engines;

    use super::*;

    fn recording() -> Recording {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/fixtures");
        Recording::open(folder.join("2.0-demo-race.tgap")).expect("a recording")
    }

    fn session(config: Config) -> Session {
        Session::new(&config, Box::new(NoObserver), Sink::none("demo", &config), 10)
    }

    fn play(playback: &mut Playback<'_>, session: &mut Session) {
        while playback.poll(session) == Flow::Busy {}
    }

    fn report(analysis: &Analysis) -> String {
        Report::of(analysis, &ReportInput::for_source("demo")).to_json()
    }

    #[test]
    fn a_played_recording_has_the_report_of_the_run_after_any_seek() {
        let recording = recording();
        let (whole, _) = analyse(&recording, Engines::default(), &mut |_, _| {}).expect("readable");
        let mut session = session(recording.header().config);
        let fastest = "max".parse().expect("a speed");
        let mut playback = Playback::new(&recording, fastest).expect("events");
        play(&mut playback, &mut session);
        assert!(playback.has_ended());
        assert_eq!(report(session.analysis()), report(&whole));

        playback.execute_playback_command(Play::Skip(-1), session.analysis());
        playback.execute_playback_command(Play::Toggle, session.analysis());
        play(&mut playback, &mut session);
        let position = playback.position().expect("a recording has a position");
        assert!(!playback.has_ended() && position.at_ns < position.whole_ns);
        assert!(session.analysis().ledger().totals().events < whole.ledger().totals().events);

        playback.execute_playback_command(Play::End, session.analysis());
        play(&mut playback, &mut session);
        assert_eq!(report(session.analysis()), report(&whole));
    }

    #[test]
    fn a_seek_to_a_finding_stops_where_it_exists() {
        let recording = recording();
        let mut session = session(recording.header().config);
        let mut playback = Playback::new(&recording, "max".parse().expect("a speed")).expect("events");
        playback.execute_playback_command(Play::NextFinding, session.analysis());
        play(&mut playback, &mut session);
        let position = playback.position().expect("a recording has a position");
        let first = position.sought.expect("a finding is reached");
        assert_eq!(position.doing, PlaybackState::Paused);
        playback.execute_playback_command(Play::End, session.analysis());
        play(&mut playback, &mut session);
        let mut reached = Vec::new();
        loop {
            playback.execute_playback_command(Play::PreviousFinding, session.analysis());
            if playback.sought_finding.is_none() {
                break;
            }
            play(&mut playback, &mut session);
            let key = playback.position().and_then(|position| position.sought).expect("it is reached");
            assert!(
                session.analysis().findings().into_iter().any(|finding| FindingKey::from(finding) == key),
                "{key:?}"
            );
            reached.push(key);
        }
        // Findings less than a second after another are passed over.
        assert!(!reached.is_empty() && playback.first_shown.contains_key(&first), "{reached:?}");
        assert!(!playback.has_ended());
    }

    #[test]
    fn playback_is_idle_until_the_next_record_is_due_and_ends_when_asked() {
        let recording = recording();
        let mut session = session(recording.header().config);
        let mut playback = Playback::new(&recording, Speed::default()).expect("events");
        play(&mut playback, &mut session);
        assert_eq!(playback.poll(&mut session), Flow::Idle);
        playback.stop();
        assert_eq!(playback.poll(&mut session), Flow::Ended);
        assert!(!playback.has_ended());
    }

    #[test]
    fn a_damaged_block_is_reported_and_playback_continues() {
        let recording = recording();
        let mut bytes = std::fs::read(recording.path()).expect("a recording");
        let block = recording.blocks()[1];
        bytes[(block.offset + block.bytes - 5) as usize] ^= 4;
        let file = std::env::temp_dir().join(format!("tokengap-damaged-{}.tgap", std::process::id()));
        std::fs::write(&file, bytes).expect("a damaged copy");
        let recording = Recording::open(&file).expect("a recording");
        std::fs::remove_file(&file).expect("it exists");
        let mut session = session(recording.header().config);
        let mut playback = Playback::new(&recording, "max".parse().expect("a speed")).expect("events");
        play(&mut playback, &mut session);
        assert!(playback.has_ended());
        let missed = Report::of(session.analysis(), &ReportInput::for_source("demo")).own.events_missed;
        assert_eq!(missed, u64::from(block.records));
        let report = session.finish(&playback, &|_| {}).to_json();
        assert!(report.contains("block 1 at byte") && report.contains("is damaged"), "{report}");
    }
}
