#include "threads.h"

#include <system_error>

namespace slimformer {

void Team::wait() {
    const unsigned stage = stage_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        stage_.store(stage + 1, std::memory_order_release);
        return;
    }
    // A stage takes microseconds: going to sleep would take longer, unless the others are kept from working.
    for (int spins = 0; stage_.load(std::memory_order_acquire) == stage;)
        if (spins < 4096)
            spins++;
        else
            std::this_thread::yield();
}

Pool::Pool(int threads) {
    try {
        for (int number = 1; number < threads; number++) workers_.emplace_back([this, number] { serve(number); });
    } catch (const std::system_error&) {  // no more threads are to be had: fewer do the same work
    }
}

Pool::~Pool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int threads, const Work& work) {
    const StandardFloats floats;
    if (threads > this->threads()) threads = this->threads();
    std::unique_lock<std::mutex> alone(busy_, std::defer_lock);
    if (threads <= 1 || !alone.try_lock()) {
        Team team(1);
        work(team, 0);
        return;
    }
    Team team(threads);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        team_ = &team;
        running_ = threads - 1;
        round_++;
    }
    changed_.notify_all();
    work(team, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
    work_ = nullptr;
}

void Pool::serve(int number) {
    const StandardFloats floats;
    unsigned seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return over_ || (round_ != seen && work_ != nullptr); });
        if (over_) return;
        seen = round_;
        if (number >= team_->threads()) continue;
        const Work& work = *work_;
        Team& team = *team_;
        lock.unlock();
        work(team, number);
        lock.lock();
        if (--running_ == 0) changed_.notify_all();
    }
}

}  // namespace slimformer
