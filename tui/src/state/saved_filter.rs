//! Filters of requests that have a name.

use super::filter::RequestFilter;

/// A named filter.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedFilter {
    pub(crate) name: String,
    pub(crate) filter: RequestFilter,
}

impl SavedFilter {
    /// Parses `NAME=FILTER`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((name, filter_text)) = text.split_once('=').filter(|(name, _)| is_filter_name(name)) else {
            return Err("expected NAME=FILTER, for example slow=gap>1s; a name has letters, digits, - and _".into());
        };
        let filter = RequestFilter::parse(filter_text).map_err(|error| format!("invalid filter {error}"))?;
        Ok(Self { name: name.into(), filter })
    }
}

/// Whether the text can be the name of a filter, which users type after `@`.
fn is_filter_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}
