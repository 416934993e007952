// A few threads that work on one thing together, stage by stage.
#pragma once

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace slimformer {

// Floats as the standard has them while it lives: hosts may round otherwise, or take the smallest numbers for 0.
class StandardFloats {
   public:
    StandardFloats() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~StandardFloats() { std::fesetenv(&before_); }
    StandardFloats(const StandardFloats&) = delete;
    StandardFloats& operator=(const StandardFloats&) = delete;

   private:
    std::fenv_t before_;
};

// One piece of work done by several threads at once. Parts of a stage are taken by whoever is free; a stage begins when
// all threads have left the one before.
class Team {
   public:
    explicit Team(int threads) : threads_(threads) {}

    int threads() const { return threads_; }

    // Calls `work(part)` for every part from 0 on, over all threads, and waits until all are done.
    template <class Work>
    void share(int parts, const Work& work) {
        if (threads_ == 1) {
            for (int part = 0; part < parts; part++) work(part);
            return;
        }
        for (int part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < parts;) work(part);
        wait();
    }

   private:
    void wait();

    const int threads_;
    std::atomic<int> next_{0};
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> stage_{0};
};

// Threads that wait for work. A caller that finds them busy works alone, so that callers never wait for each other.
class Pool {
   public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Runs `work(team, thread)` on up to `threads` threads, this one among them as thread 0.
    template <class Call>
    void run(int threads, const Call& call) {
        run(threads, Work{&call, [](const void* of, Team& team, int thread) { (*static_cast<const Call*>(of))(team, thread); }});
    }

   private:
    // What is called, which its caller holds: nothing is copied, so that no memory is needed.
    struct Work {
        const void* of;
        void (*call)(const void* of, Team& team, int thread);

        void operator()(Team& team, int thread) const { call(of, team, thread); }
    };

    void run(int threads, const Work& work);
    void serve(int number);

    std::vector<std::thread> workers_;
    std::mutex busy_;
    std::mutex mutex_;
    std::condition_variable changed_;
    const Work* work_ = nullptr;
    Team* team_ = nullptr;
    unsigned round_ = 0;
    int running_ = 0;
    bool over_ = false;
};

}  // namespace slimformer
