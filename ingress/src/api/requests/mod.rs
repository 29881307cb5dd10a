//! `/v1/requests`: the log of a tenant's calls; and the commands among them that were accepted.

mod accepted;
mod log;

use crate::pipeline::Routes;

pub(crate) fn routes() -> Routes {
    log::routes().merge(accepted::routes())
}
