//! English.

use super::{Confirmation, PageText, PageTexts, Preferences, Unsubscribe};

pub(super) const TEXTS: PageTexts = PageTexts {
    lang: "en",
    sender: "this sender",
    unsubscribe: Unsubscribe {
        title: "Unsubscribe",
        question: "Do you want to stop marketing email from {from}? It takes effect at once.",
        button: "Unsubscribe",
        rather: "Choose topics instead",
        done: PageText {
            title: "You are unsubscribed",
            text: "You will get no more marketing email from {from}. Messages about your orders or your account may still reach you.",
        },
        changed_mind: "Changed your mind? Your email preferences",
    },
    preferences: Preferences {
        title: "Email preferences",
        about: "What {from} may send to {address}.",
        topics: "Topics",
        choose: "Tick what you would like to get.",
        no_topics: "There are no topics to choose from.",
        more_topics: "This page shows at most 100 topics. Write to the sender about others, or unsubscribe from everything below.",
        save: "Save choices",
        saved: "Your choices are saved.",
        everything: "All marketing email",
        leave_about: "Stop all marketing email, whatever the topic. Messages about your orders or your account may still reach you.",
        leave: "Unsubscribe from everything",
        has_left: "You get no marketing email from {from}.",
        return_about: "Would you like to get it again? Your consent is recorded when you press the button.",
        come_back: "Subscribe again",
        is_back: "You are subscribed again.",
        held: "At the moment {from} cannot send you marketing email, for a reason that cannot be changed here. Please ask them.",
        not_understood: "Something was wrong with the form. Nothing was changed; please try again.",
    },
    confirmation: Confirmation {
        title: "Confirm your subscription",
        question: "Do you want to get marketing email from {from} at {address}? You can unsubscribe at any time.",
        button: "Yes, subscribe me",
        done: PageText {
            title: "You are subscribed",
            text: "You get marketing email from {from} from now on. Every one has a link to unsubscribe.",
        },
        closed: PageText {
            title: "This link is not valid any more",
            text: "It has expired, or the address gets no more marketing email from {from}. If you still want to get it, please sign up again.",
        },
    },
    no_link: PageText {
        title: "This link does not work",
        text: "It may be too old, or cut in two by a mail program. Open it once more from the message itself.",
    },
    not_left: PageText {
        title: "Something went wrong",
        text: "You are <strong>not yet</strong> unsubscribed. Please try again in a minute.",
    },
    not_stored: PageText {
        title: "Something went wrong",
        text: "Your choice is <strong>not yet</strong> stored. Please try again in a minute.",
    },
};
