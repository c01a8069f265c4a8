//! Control of a replay, which decides how far it may proceed. Independent of the recording.

use std::time::{Duration, Instant};

use session::playback::{Play, PlaybackState, Position, Speed};
use trace::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;

/// Where a seek ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeekTarget {
    /// This recorded time.
    Time(MonoNs),
    /// Start of a finding that had not started when the seek began.
    Finding,
    /// End of the recording.
    End,
}

/// Real time and recorded time from which the current speed is measured.
#[derive(Debug)]
struct ClockBase {
    real: Instant,
    recorded: MonoNs,
}

impl ClockBase {
    fn now(recorded: MonoNs) -> Self {
        Self { real: Instant::now(), recorded }
    }
}

/// Decides how far playback may proceed.
#[derive(Debug)]
pub(super) struct Player {
    first: MonoNs,
    last: MonoNs,
    /// Recorded time up to which the recording has been played.
    pub(super) played_to: MonoNs,
    speed: Speed,
    is_playing: bool,
    /// The whole recording has been played.
    pub(super) has_ended: bool,
    seek_target: Option<SeekTarget>,
    clock_base: ClockBase,
    /// Set to seek backwards: replay from an earlier block up to this time.
    pub(super) restart_to: Option<MonoNs>,
    /// Start of the analysed part; `None` if it is the start of the recording.
    analysed_since: Option<MonoNs>,
}

impl Player {
    /// Starts at the beginning of a recording that covers the time from `first` to `last`.
    pub(super) fn new(first: MonoNs, last: MonoNs, speed: Speed) -> Self {
        Self {
            first,
            last,
            played_to: first,
            speed,
            is_playing: true,
            has_ended: false,
            seek_target: None,
            clock_base: ClockBase::now(first),
            restart_to: None,
            analysed_since: None,
        }
    }

    /// Records that the recording has been played up to `at`. Ends a seek whose time is reached.
    pub(super) fn advance_to(&mut self, at: MonoNs) {
        self.played_to = self.played_to.max(at);
        if let Some(SeekTarget::Time(to)) = self.seek_target
            && at >= to
        {
            self.end_seek();
        }
    }

    /// Stops at the end of the recording, and aborts a seek.
    pub(super) fn stop_at_end(&mut self) {
        self.has_ended = true;
        self.seek_target = None;
        self.played_to = self.last;
    }

    /// Starts playing from the time `start`, or from the beginning if it is `None`. Whether it plays or is paused does not change.
    pub(super) fn restart_at(&mut self, start: Option<MonoNs>) {
        self.played_to = start.unwrap_or(self.first);
        self.analysed_since = start;
        self.has_ended = false;
        self.clock_base = ClockBase::now(self.played_to);
    }

    /// Whether the next record is due at `now`, according to the speed.
    pub(super) fn is_next_record_due(&self, now: Instant) -> bool {
        let played_ns = self.played_to.since(self.clock_base.recorded) as f64 / self.speed.factor();
        let due = self.clock_base.real + Duration::from_nanos(played_ns as u64);
        // A seek plays at maximum speed, even if paused.
        self.seek_target.is_some() || (self.is_playing && due <= now)
    }

    /// Whether playback seeks the next finding.
    pub(super) fn seeks_finding(&self) -> bool {
        self.seek_target == Some(SeekTarget::Finding)
    }

    /// Executes a playback command of the user. A command that seeks only sets the target; the recording is played later, up to the target.
    /// `findings_shown_at` are the times at which findings were first shown.
    pub(super) fn execute_command(&mut self, command: Play, findings_shown_at: &[MonoNs]) {
        // The time of a pause, or at another speed, must not count as time to catch up with.
        self.reset_clock();
        match command {
            Play::Toggle => self.toggle_playing(),
            Play::Speed(steps) => self.speed = self.speed.step(steps),
            Play::Skip(seconds) => {
                let skipped_ns = seconds.saturating_mul(SECOND_NS as i64);
                self.seek_to(MonoNs(self.played_to.0.saturating_add_signed(skipped_ns)));
            }
            Play::To(ns_from_start) => {
                // After the end nothing plays, so the time sought stays on the screen.
                if self.has_ended {
                    self.is_playing = false;
                }
                self.seek_to(MonoNs(self.first.0.saturating_add(ns_from_start)));
            }
            Play::End => self.seek_target = (!self.has_ended).then_some(SeekTarget::End),
            Play::NextFinding => self.seek_target = (!self.has_ended).then_some(SeekTarget::Finding),
            Play::PreviousFinding => self.seek_previous_finding(findings_shown_at),
        }
    }

    /// Seeks the last finding that was shown before the current one, and pauses there. Does nothing if there is none.
    fn seek_previous_finding(&mut self, findings_shown_at: &[MonoNs]) {
        // After this command, playback is paused where the current finding was shown, or shortly after.
        let latest = MonoNs(self.played_to.0.saturating_sub(SECOND_NS));
        let previous = findings_shown_at.iter().filter(|shown_at| **shown_at < latest).max();
        if let Some(&previous) = previous {
            self.is_playing = false;
            self.seek_to(previous);
        }
    }

    /// Pauses or continues. During a seek, aborts the seek and pauses. At the end of the recording, plays from the beginning.
    fn toggle_playing(&mut self) {
        if self.seek_target.is_some() {
            self.pause();
        } else if self.has_ended {
            self.seek_to(self.first);
        } else {
            self.is_playing = !self.is_playing;
        }
    }

    /// Playback position, for the screen. The caller adds the finding that was sought.
    pub(super) fn position(&self, wall_ns: Option<u64>) -> Position {
        Position {
            at_ns: self.played_to.since(self.first),
            whole_ns: self.last.since(self.first),
            wall_ns,
            speed: self.speed,
            doing: self.playback_state(),
            since_ns: self.analysed_since.map(|start| start.since(self.first)),
            sought: None,
        }
    }

    /// What the player does, for the screen. A search is shown even while paused.
    fn playback_state(&self) -> PlaybackState {
        if self.seek_target.is_some() || self.restart_to.is_some() {
            PlaybackState::Seeking
        } else if self.has_ended {
            PlaybackState::Ended
        } else if self.is_playing {
            PlaybackState::Playing
        } else {
            PlaybackState::Paused
        }
    }

    /// Sets `target_time`, or the nearest recorded time, as the target. To go back, the recording has to be read again from an earlier
    /// block.
    fn seek_to(&mut self, target_time: MonoNs) {
        let target_time = target_time.clamp(self.first, self.last);
        let is_back = target_time < self.played_to;
        if is_back {
            self.restart_to = Some(target_time);
        }
        // At the end, there is nothing ahead to seek to.
        self.seek_target = (is_back || !self.has_ended).then_some(SeekTarget::Time(target_time));
    }

    /// Pauses, and aborts a seek.
    pub(super) fn pause(&mut self) {
        self.is_playing = false;
        self.end_seek();
    }

    /// Ends a seek that has reached its target or is aborted. Playback goes on from here at the chosen speed.
    fn end_seek(&mut self) {
        self.seek_target = None;
        self.reset_clock();
    }

    /// Measures the playback speed from the current position on.
    fn reset_clock(&mut self) {
        self.clock_base = ClockBase::now(self.played_to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> MonoNs {
        MonoNs(n * SECOND_NS)
    }

    fn player() -> Player {
        Player::new(second(100), second(160), Speed::default())
    }

    fn doing(player: &Player) -> (u64, PlaybackState) {
        let position = player.position(None);
        (position.at_ns / SECOND_NS, position.doing)
    }

    #[test]
    fn playback_keeps_its_speed_and_does_not_catch_up_after_a_pause() {
        let mut player = player();
        player.advance_to(second(110));
        let now = Instant::now();
        assert!(!player.is_next_record_due(now), "ten seconds are not over");
        assert!(player.is_next_record_due(now + Duration::from_secs(11)));
        player.execute_command(Play::Toggle, &[]);
        assert!(!player.is_next_record_due(now + Duration::from_mins(1)));
        player.execute_command(Play::Toggle, &[]);
        player.advance_to(second(111));
        assert!(!player.is_next_record_due(Instant::now()), "the pause is not caught up with");
        player.execute_command(Play::Speed(9), &[]);
        assert!(player.is_next_record_due(Instant::now()));
    }

    #[test]
    fn forward_seeks_play_through_and_backward_seeks_restart() {
        let mut player = player();
        player.advance_to(second(110));
        player.execute_command(Play::Skip(10), &[]);
        assert!(player.is_next_record_due(Instant::now()) && player.restart_to.is_none());
        player.advance_to(second(120));
        assert_eq!(doing(&player), (20, PlaybackState::Playing));
        player.execute_command(Play::Skip(-15), &[]);
        assert_eq!(player.restart_to.take(), Some(second(105)));
        player.restart_at(None);
        assert_eq!(doing(&player), (0, PlaybackState::Seeking));
        player.advance_to(second(105));
        assert_eq!(doing(&player), (5, PlaybackState::Playing));
        player.execute_command(Play::Skip(-1_000), &[]);
        assert_eq!(player.restart_to.take(), Some(second(100)), "not before the start");
    }

    #[test]
    fn a_finding_seek_pauses_at_the_start_of_the_finding() {
        let mut player = player();
        assert!(!player.seeks_finding());
        player.execute_command(Play::NextFinding, &[]);
        player.advance_to(second(130));
        assert_eq!(doing(&player).1, PlaybackState::Seeking);
        assert!(player.seeks_finding());
        player.pause();
        assert_eq!(doing(&player), (30, PlaybackState::Paused));
        player.execute_command(Play::PreviousFinding, &[second(105), second(112), second(130)]);
        assert_eq!(player.restart_to.take(), Some(second(112)));
    }

    #[test]
    fn playback_stays_ended_until_it_is_restarted() {
        let mut player = player();
        player.execute_command(Play::End, &[]);
        player.stop_at_end();
        assert_eq!(doing(&player), (60, PlaybackState::Ended));
        player.execute_command(Play::NextFinding, &[]);
        assert_eq!(doing(&player).1, PlaybackState::Ended);
        player.execute_command(Play::Toggle, &[]);
        assert!(player.has_ended);
        assert_eq!(player.restart_to.take(), Some(second(100)));
    }
}
