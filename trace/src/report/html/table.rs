//! A table.

use maud::{Markup, Render, html};

use crate::report::table::Kind::{self, Number};

/// Renders a table that scrolls sideways if it is wider than the page. Values that are text are escaped.
pub(super) fn table<R: Render, const N: usize>(
    columns: [(&str, Kind); N],
    rows: impl IntoIterator<Item = [R; N]>,
) -> Markup {
    let class = |kind: Kind| match kind {
        Kind::Text => None,
        Number => Some("n"),
        Kind::Rid => Some("rid"),
        Kind::Hop => Some("hop"),
    };
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @for (name, kind) in columns {
                            th class=[class(kind).filter(|_| kind == Number)] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (cell, (_, kind)) in row.into_iter().zip(columns) {
                                td class=[class(kind)] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}
