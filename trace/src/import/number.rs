//! Parsing of digits.

/// Parses at most `limit` leading digits; returns the number and the rest. `None` without a digit or with too many.
pub(super) fn digits(text: &[u8], limit: usize) -> Option<(u64, &[u8])> {
    let count = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if count == 0 || count > limit.min(19) {
        return None;
    }
    let (digits, rest) = text.split_at(count);
    Some((digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')), rest))
}

/// Parses exactly `count` digits.
pub(super) fn exactly(text: &[u8], count: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = digits(text, count)?;
    (text.len() - rest.len() == count).then_some((number, rest))
}

/// Parses the digits after a decimal point to nanoseconds; digits beyond the ninth are dropped.
pub(super) fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let count = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(count);
    let mut ns = 0;
    for place in 0..9 {
        ns = ns * 10 + u64::from(digits.get(place).map_or(0, |d| d - b'0'));
    }
    Some((ns, rest))
}

/// Converts seconds since the epoch to nanoseconds. `None` outside 2001 to 2096, which excludes other clocks such as uptime.
pub(super) fn epoch_ns(seconds: f64) -> Option<u64> {
    (1e9..4e9)
        .contains(&seconds)
        .then(|| (seconds * 1e6).round() as u64 * 1_000)
}
