//! Throughput, cost and latency of each way, measured in alternating turns.

use std::path::Path;

use anyhow::Result;

use super::turn::{Cost, Traffic, Turn, turn};
use super::way::Way;
use crate::bench::quartiles::Quartiles;

type Named = (Way, &'static str);

/// Prints messages per second relative to a direct connection, and CPU microseconds per message, at full speed or at `rate`.
pub(super) fn throughput(
    ways: &[Named],
    peer: &Path,
    message: &Path,
    volume: u64,
    rate: u64,
    rounds: usize,
) -> Result<Vec<(Way, f64, Option<f64>)>> {
    let bytes = std::fs::metadata(message)?.len();
    let count = volume.div_ceil(bytes).max(2);
    let traffic = Traffic {
        peer,
        message,
        count,
        rate,
        connections: 1,
    };
    let turns = turns(ways, traffic, rounds)?;
    let rate = |turns: &[Turn]| median(turns.iter().map(|turn| turn.rate)).unwrap_or(f64::NAN);
    let direct = rate(&turns[0]);
    let mut rows = Vec::new();
    for (turns, &(way, name)) in turns.iter().zip(ways) {
        let costs = |what: fn(&Cost) -> Option<f64>| {
            median(turns.iter().filter_map(|turn| turn.between.as_ref()).filter_map(what))
        };
        let ratios = || turns.iter().map(|turn| turn.rate / direct);
        let spread = format!(
            "{:.2}-{:.2}",
            ratios().fold(f64::INFINITY, f64::min),
            ratios().fold(0.0, f64::max)
        );
        println!(
            "{name:26} {bytes:9} {:9.0} {:7.2} {spread:>11} {:>12} {:>12} {:>9} {:>9}",
            rate(turns),
            rate(turns) / direct,
            shown(costs(|cost| Some(cost.copying_us))),
            shown(costs(|cost| Some(cost.all_us))),
            shown(costs(|cost| cost.peak_mib)),
            shown(costs(|cost| cost.observed.map(|share| share * 100.0))),
        );
        rows.push((way, rate(turns) / direct, costs(|cost| Some(cost.all_us))));
    }
    Ok(rows)
}

/// Measures message latency at a rate that leaves every way idle time. Returns each way's median beyond a direct connection's.
pub(super) fn latency(ways: &[Named], traffic: Traffic<'_>, rounds: usize) -> Result<Vec<(Way, f64)>> {
    let bytes = std::fs::metadata(traffic.message)?.len();
    let turns = turns(ways, traffic, rounds)?;
    let p50 = |turns: &[Turn]| median(turns.iter().map(|turn| turn.p50_us));
    let p99 = |turns: &[Turn]| median(turns.iter().map(|turn| turn.p99_us));
    let beyond = |one: Option<f64>, direct: Option<f64>| Some(one? - direct?);
    let mut rows = Vec::new();
    for (turns_, &(way, name)) in turns.iter().zip(ways) {
        let cpu = turns_.iter().filter_map(|turn| Some(turn.between.as_ref()?.all_us));
        println!(
            "{name:26} {bytes:9} {:>9} {:>9} {:>9} {:>9} {:>12}",
            shown(p50(turns_)),
            shown(beyond(p50(turns_), p50(&turns[0]))),
            shown(p99(turns_)),
            shown(beyond(p99(turns_), p99(&turns[0]))),
            shown(median(cpu)),
        );
        rows.extend(beyond(p50(turns_), p50(&turns[0])).map(|us| (way, us)));
    }
    Ok(rows)
}

/// Runs the ways in alternating turns; the first round warms up.
fn turns(ways: &[Named], traffic: Traffic<'_>, rounds: usize) -> Result<Vec<Vec<Turn>>> {
    let mut turns: Vec<Vec<Turn>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (turns, &(way, _)) in turns.iter_mut().zip(ways) {
            let turn = turn(way, traffic)?;
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    Ok(turns)
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Quartiles::of(values).map(|values| values.median)
}
